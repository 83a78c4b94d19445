// All runs at a glance: those that need somebody first, a page of rows at a time, updated in place.

import { h, arrange, setText } from "./dom.js";
import * as store from "./store.js";
import { label, number, observing, sign, STATES, tone, unwatched } from "./words.js";

const PAGE = 50;
const collator = new Intl.Collator("en", { numeric: true });
const RANK = { locked: 0, open: 1, half_open: 2, closed: 4, completed: 5 };

/** Kept while the page is open, so that coming back from a run finds the list as it was. */
const chosen = { filter: "", query: "", page: 0 };

const rank = (view) => (view.state === "closed" && view.paused ? 3 : RANK[view.state] ?? 6);
const matches = (view, filter) => !filter || (filter === "paused" ? view.paused : view.state === filter);

/** State as sign, word and colour. */
export function badge(state, colour = state) {
  return h("span", { class: `badge ${colour}` }, h("span", { "aria-hidden": "true" }, sign(state)), ` ${label(state)}`);
}

class Row {
  constructor() {
    this.state = h("td", { class: "state" });
    this.link = h("a", {});
    this.decision = h("td", { class: "decision" });
    const cell = (name) => h("td", { class: "number", "data-label": name });
    [this.attempt, this.step, this.scale, this.trips, this.stable] = ["attempt", "step", "LR scale", "trips", "stable at"].map(cell);
    this.element = h("tr", {}, this.state, h("th", { scope: "row" }, this.link), this.decision,
      this.attempt, this.step, this.scale, this.trips, this.stable);
  }

  show(view) {
    const tags = [view.paused && "paused", observing(view), unwatched(view) && "not watched"].filter(Boolean);
    const key = [view.state, ...tags].join();
    if (this.key !== key) {
      this.key = key;
      this.element.dataset.state = view.state;
      this.state.replaceChildren(badge(view.state, tone(view)), ...tags.map((tag) => h("span", { class: "tag" }, tag)));
    }
    const href = `#/run/${encodeURIComponent(view.run)}`;
    if (this.link.getAttribute("href") !== href) this.link.setAttribute("href", href);
    setText(this.link, view.run);
    setText(this.decision, view.state === "locked" && view.reason ? view.reason : view.decision);
    setText(this.attempt, view.attempt < 0 ? "–" : number(view.attempt));
    setText(this.step, number(view.step));
    setText(this.scale, number(view.lr_scale));
    setText(this.trips, number(view.trips.divergence + view.trips.infrastructure));
    setText(this.stable, view.promoted.length ? number(view.promoted.at(-1).step) : "–");
  }
}

/** The list of all runs in `root`. */
export function fleet(root) {
  const rows = new Map();
  const chips = new Map();
  const chipBar = h("div", { class: "chips", role: "group", "aria-label": "Filter by state" });
  const search = h("input", { id: "search", type: "search", value: chosen.query, autocomplete: "off", spellcheck: "false" });
  const count = h("p", { class: "count", role: "status" });
  const body = h("tbody");
  const head = ["State", "Run", "Last decision", "Attempt", "Step", "LR scale", "Trips", "Stable at"];
  const table = h("table", { class: "fleet" },
    h("caption", { class: "unseen" }, "Guarded runs, those that need somebody first"),
    h("thead", {}, h("tr", {}, head.map((text, at) => h("th", { scope: "col", class: at > 2 ? "number" : null }, text)))), body);
  const empty = h("p", { class: "empty" });
  const turn = (by) => () => {
    chosen.page += by;
    render();
    root.querySelector("h1").focus();
  };
  const previous = h("button", { type: "button", onclick: turn(-1) }, "Previous");
  const next = h("button", { type: "button", onclick: turn(1) }, "Next");
  const pager = h("nav", { class: "pager", "aria-label": "Pages of runs" }, previous, next);

  function choose(filter) {
    chosen.filter = chosen.filter === filter ? "" : filter;
    chosen.page = 0;
    render();
  }

  for (const name of ["", ...STATES, "paused"]) {
    const text = name === "" ? "all" : name === "paused" ? "paused" : label(name);
    const amount = h("span", { class: "amount" });
    const mark = name && name !== "paused" ? h("span", { "aria-hidden": "true", class: `mark ${name}` }, sign(name)) : null;
    const chip = h("button", { type: "button", class: "chip", onclick: () => choose(name) }, mark, ` ${text} `, amount);
    chips.set(name, { chip, amount });
    chipBar.append(chip);
  }
  search.addEventListener("input", () => {
    chosen.query = search.value;
    chosen.page = 0;
    render();
  });

  root.append(
    h("h1", { tabindex: "-1" }, "Runs"),
    h("div", { class: "bar" }, chipBar,
      h("div", { class: "search" }, h("label", { for: "search" }, "Name contains"), search)),
    h("div", { class: "scroll" }, table), empty, h("div", { class: "foot" }, count, pager),
  );

  function counts() {
    const found = new Map([...STATES, "paused"].map((name) => [name, 0]));
    for (const view of store.runs.values()) {
      found.set(view.state, (found.get(view.state) ?? 0) + 1);
      if (view.paused) found.set("paused", found.get("paused") + 1);
    }
    found.set("", store.runs.size);
    for (const [name, { chip, amount }] of chips) {
      setText(amount, number(found.get(name)));
      chip.setAttribute("aria-pressed", String(chosen.filter === name));
      chip.hidden = name !== "" && !found.get(name) && chosen.filter !== name;
    }
  }

  function render() {
    counts();
    const query = chosen.query.trim().toLowerCase();
    const found = [...store.runs.values()].filter((view) => matches(view, chosen.filter) && view.run.toLowerCase().includes(query));
    found.sort((a, b) => rank(a) - rank(b) || collator.compare(a.run, b.run));
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    chosen.page = Math.min(Math.max(0, chosen.page), pages - 1);
    const first = chosen.page * PAGE;
    const shown = found.slice(first, first + PAGE);
    const elements = shown.map((view) => {
      let row = rows.get(view.run);
      if (!row) rows.set(view.run, (row = new Row()));
      row.show(view);
      return row.element;
    });
    const names = new Set(shown.map((view) => view.run));
    for (const name of rows.keys()) if (!names.has(name)) rows.delete(name);
    arrange(body, elements);
    table.hidden = !shown.length;
    empty.hidden = Boolean(shown.length);
    setText(empty, store.loaded ? (store.runs.size ? "No run matches." : "No run is guarded.") : "Loading the runs.");
    setText(count, shown.length ? `${number(first + 1)}–${number(first + shown.length)} of ${number(found.length)} runs` : "");
    pager.hidden = pages === 1;
    previous.disabled = chosen.page === 0;
    next.disabled = chosen.page === pages - 1;
  }

  return { title: "", update: render, leave: () => {} };
}
