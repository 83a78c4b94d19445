// The address that a notification links to: it opens the postmortem as soon as there is one.

import { h, setText } from "./dom.js";
import { ask, of } from "./net.js";
import * as store from "./store.js";

const POLL_MS = 2_000; // it is written within seconds of the trip

/** Wait in `root` for the postmortem of an attempt (a text; empty: the newest one) and go there. */
export function postmortemPage(root, run, attempt) {
  const what = attempt ? `The postmortem of attempt ${attempt} of ${run}` : `The postmortem of ${run}`;
  const sentence = h("p", { class: "empty", role: "status" }, "Looking for it.");
  root.append(
    h("p", { class: "crumb" }, h("a", { href: `#/run/${encodeURIComponent(run)}` }, run)),
    h("h1", { tabindex: "-1" }, what), sentence);
  let left = false;
  let asked = false;

  async function look() {
    if (left || !store.live()) return;
    asked = true;
    try {
      const { postmortems } = await ask("GET", of(run, "postmortems"));
      const files = (postmortems.findLast((one) => !attempt || one.attempt === Number(attempt)) ?? { files: [] }).files;
      const file = files.find((name) => name.endsWith(".html"));
      if (file && !left) location.replace(`${of(run, "postmortems")}/${encodeURIComponent(file)}`);
      setText(sentence, "It is not written yet; it opens here as soon as it is.");
    } catch (error) {
      setText(sentence, error.message);
    }
  }

  const polling = setInterval(look, POLL_MS);
  return {
    title: `${run} postmortem`,
    update() {
      if (!asked) look(); // the page is live from now on
    },
    refresh: look,
    leave() {
      left = true;
      clearInterval(polling);
    },
  };
}
