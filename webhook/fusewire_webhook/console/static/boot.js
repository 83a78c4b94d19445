// A file that did not come (a network that changes drops requests) must not leave a page that waits for ever.

(() => {
  const KEY = "fusewire.reloads";
  const MOST = 5;
  const failed = (event) => {
    if (!(event.target instanceof HTMLElement)) return;
    const count = Number(sessionStorage.getItem(KEY)) + 1;
    sessionStorage.setItem(KEY, String(count));
    const words = count <= MOST ? "A file of the console did not come; it is loaded again." : "The console did not load. Reload the page.";
    const place = document.querySelector("main .empty");
    if (place) place.textContent = words;
    if (count <= MOST) setTimeout(() => location.reload(), 500);
  };
  window.addEventListener("error", failed, { capture: true });
  window.addEventListener("load", () => {
    if (document.body.dataset.started) sessionStorage.removeItem(KEY);
  });
})();
