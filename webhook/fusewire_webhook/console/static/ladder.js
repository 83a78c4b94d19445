// The snapshot ladder and the postmortems of a run.

import { h, setText } from "./dom.js";
import { ask, of } from "./net.js";
import { bytes, moment, number } from "./words.js";

const MOST = 6;
const SIGNS = { promoted: "●", candidate: "○", rejected: "✕", quarantined: "⚠", unusable: "✕" };

function rung(row) {
  const links = (row.links ?? []).map((link) => h("span", { class: "tag" }, link));
  return h("li", { class: `rung ${row.state}` },
    h("p", { class: "rung-head" },
      h("span", { class: "step" }, row.step === undefined ? row.name : `step ${number(row.step)}`),
      h("span", { class: `rung-state ${row.state}` }, h("span", { "aria-hidden": "true" }, SIGNS[row.state] ?? "?"), ` ${row.state}`), links),
    row.step === undefined ? null : h("p", { class: "detail" }, `${row.name} · attempt ${row.attempt} · ${bytes(row.size)} · ${moment(row.time)}`),
    row.why ? h("p", { class: "why" }, row.why) : null);
}

/** Shows the first few of a list's items, and a button for the rest. */
function fold(list) {
  let open = false;
  const apply = () => [...list.children].forEach((item, index) => { item.hidden = !open && index >= MOST; });
  const button = h("button", { type: "button", hidden: true, onclick: () => {
    open = true;
    button.hidden = true;
    apply();
  } }, "");
  return {
    button,
    show(items) {
      list.replaceChildren(...items);
      button.hidden = open || items.length <= MOST;
      setText(button, `Show all ${items.length}`);
      apply();
    },
  };
}

/** The ladder in an element. */
export function ladder(run) {
  const list = h("ol", { class: "ladder", "aria-label": "Snapshots, newest first" });
  const folding = fold(list);
  const empty = h("p", { class: "empty small" }, "No snapshot yet.");
  const problem = h("p", { class: "error", role: "alert" });
  const element = h("section", { class: "card", "aria-labelledby": "ladder-title" },
    h("h2", { id: "ladder-title" }, "Snapshots"), problem, empty, list, folding.button);
  let rows = [];
  let shown = "";
  return {
    element,
    rungs: () => rows,
    async load() {
      try {
        rows = (await ask("GET", of(run, "snapshots"))).snapshots;
        setText(problem, "");
      } catch (error) {
        setText(problem, error.message);
        return;
      }
      const key = JSON.stringify(rows);
      if (key === shown) return;
      shown = key;
      empty.hidden = rows.length > 0;
      folding.show(rows.map(rung));
    },
  };
}

/** The postmortems in an element, the newest first. */
export function postmortems(run) {
  const list = h("ul", { class: "postmortems" });
  const folding = fold(list);
  const element = h("section", { class: "card", "aria-labelledby": "postmortems-title", hidden: true },
    h("h2", { id: "postmortems-title" }, "Postmortems"), list, folding.button);
  let shown = "";

  function item({ attempt, written_at: written, files }) {
    const address = (file) => `${of(run, "postmortems")}/${encodeURIComponent(file)}`;
    const [page, text] = ["html", "md"].map((kind) => files.find((file) => file.endsWith(`.${kind}`)));
    return h("li", {},
      page ? h("a", { href: address(page) }, `attempt ${attempt}`) : `attempt ${attempt}`,
      text ? [" · ", h("a", { href: address(text), "aria-label": `attempt ${attempt} as Markdown` }, "Markdown")] : null,
      h("span", { class: "detail" }, ` · ${moment(written)}`));
  }

  return {
    element,
    async load() {
      const { postmortems: found } = await ask("GET", of(run, "postmortems")).catch(() => ({ postmortems: [] }));
      const key = JSON.stringify(found);
      if (key === shown) return;
      shown = key;
      element.hidden = found.length === 0;
      folding.show(found.reverse().map(item));
    },
  };
}
