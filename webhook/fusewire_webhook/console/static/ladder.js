// The snapshot ladder and the postmortems of a run.

import { h, setText } from "./dom.js";
import { ask, of } from "./net.js";
import { bytes, moment, number } from "./words.js";

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

/** The ladder in an element. */
export function ladder(run) {
  const list = h("ol", { class: "ladder", "aria-label": "Snapshots, newest first" });
  const empty = h("p", { class: "empty small" }, "No snapshot yet.");
  const problem = h("p", { class: "error", role: "alert" });
  const element = h("section", { class: "card", "aria-labelledby": "ladder-title" },
    h("h2", { id: "ladder-title" }, "Snapshots"), problem, empty, list);
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
      list.replaceChildren(...rows.map(rung));
    },
  };
}

/** The postmortems in an element, the newest first. */
export function postmortems(run) {
  const list = h("ul", { class: "postmortems" });
  const element = h("section", { class: "card", "aria-labelledby": "postmortems-title", hidden: true },
    h("h2", { id: "postmortems-title" }, "Postmortems"), list);
  let shown = "";

  function item({ attempt, written_at: written, files }) {
    const address = (file) => `${of(run, "postmortems")}/${encodeURIComponent(file)}`;
    const [page, text] = ["html", "md"].map((kind) => files.find((file) => file.endsWith(`.${kind}`)));
    return h("li", {},
      page ? h("a", { href: address(page) }, `attempt ${attempt}`) : `attempt ${attempt}`,
      text ? [" · ", h("a", { href: address(text) }, `attempt ${attempt} as Markdown`)] : null,
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
      list.replaceChildren(...found.reverse().map(item));
    },
  };
}
