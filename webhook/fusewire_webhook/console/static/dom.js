// Elements from values. Text becomes text nodes, never markup: nothing from outside is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** An HTML element; attributes that start with "on" are listeners. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Set the text of an element only where it differs, so that nothing is painted or announced again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Make `parent` hold exactly `wanted`, in this order, moving as little as possible (focus survives). */
export function arrange(parent, wanted) {
  const keep = new Set(wanted);
  const focused = document.activeElement;
  for (const child of [...parent.children]) if (!keep.has(child)) child.remove();
  let at = parent.firstElementChild;
  for (const child of wanted) {
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

const announcer = document.getElementById("announcer");
let waiting = [];

/** Tell screen readers, politely; many sentences at once become one. */
export function announce(sentence) {
  if (waiting.push(sentence) > 1) return;
  setTimeout(() => {
    const [sentences, count] = [waiting.slice(-3), waiting.length];
    waiting = [];
    announcer.textContent = count > 3 ? `${count} changes; the last: ${sentences.at(-1)}` : sentences.join(". ");
  }, 250);
}
