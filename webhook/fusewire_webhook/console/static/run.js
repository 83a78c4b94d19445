// One run: what it is, what was decided, what a person can do.

import { h, announce, setText } from "./dom.js";
import { commandBar } from "./commands.js";
import { badge } from "./fleet.js";
import { ladder, postmortems } from "./ladder.js";
import * as store from "./store.js";
import { timeline } from "./timeline.js";
import { meaning, number, observing, step, tone } from "./words.js";

const POLL_MS = 5_000; // the gate's reasons and new postmortems are not journaled, so they are asked for

function facts(view) {
  const incident = view.incident
    ? `${number(view.divergences)} divergence${view.divergences === 1 ? "" : "s"}; ends with a stable snapshot at step ${number(view.incident_ends_at)} or later`
    : "none";
  const stable = view.promoted.at(-1);
  return [
    ["Attempt", view.attempt < 0 ? "none yet" : `${view.attempt}${view.live ? ", running" : ", not running"}${view.tripped ? ", tripped" : ""}`],
    ["Step", step(view)],
    ["Learning-rate scale", number(view.lr_scale)],
    ["Started from", view.resumed_from ?? "scratch"],
    ["Stable snapshot", stable ? stable.name : "none yet"],
    ["Open incident", incident],
    ["Trips", `${number(view.trips.divergence)} divergence, ${number(view.trips.infrastructure)} infrastructure`],
    ["Restarts", `${number(view.restarts.divergence)} divergence, ${number(view.restarts.infrastructure)} infrastructure`],
    ["Furthest trip", view.furthest_trip ? `step ${number(view.furthest_trip)}` : "none"],
    ["Seed", `${view.seed}, random state ${view.rng === "restore" ? "restored" : "discarded"}`],
    ["Algorithm", view.algorithm || "not named"],
  ];
}

function now(view) {
  if (!view.procedure) return "";
  return `Under way: ${view.procedure.stages.join(" → ")}, because of ${view.procedure.reason}`;
}

/** The page of `run` in `root`. */
export function runPage(root, run) {
  const heading = h("h1", { tabindex: "-1" }, run);
  const state = h("div", { class: "states" });
  const decision = h("p", { class: "decision-now" });
  const reason = h("p", { class: "reason", role: "alert" });
  const progress = h("p", { class: "progress" });
  const pauses = h("ul", { class: "pauses" });
  const held = h("p", { class: "held" });
  const result = h("p", { class: "result", role: "status" });
  const list = h("dl", { class: "facts" });
  const values = new Map();
  const rungs = ladder(run);
  const reports = postmortems(run);
  const line = timeline(run);
  const commands = commandBar(run, {
    rungs: rungs.rungs,
    done(sentence) {
      setText(result, sentence);
      announce(sentence);
    },
  });
  const unknown = h("p", { class: "empty" });
  const body = h("div", { class: "columns" },
    h("div", { class: "side-column" },
      reports.element,
      h("section", { class: "card", "aria-labelledby": "facts-title" }, h("h2", { id: "facts-title" }, "Now"), list)),
    h("div", { class: "main-column" }, line.element),
    h("div", { class: "side-column" }, rungs.element));
  const report = h("a", {}, "");
  const todo = h("p", { class: "todo", hidden: true }, report);
  const head = h("section", { class: "head", "aria-label": "State" },
    h("p", { class: "crumb" }, h("a", { href: "#/" }, "All runs")),
    h("div", { class: "title" }, heading, state), decision, reason, todo, progress, held, pauses, commands.element, result);
  root.append(head, unknown, body);

  let present = false;
  let snapshots = "";

  function show(view) {
    const tags = [view.paused && "paused", observing(view)].filter(Boolean);
    const key = [view.state, meaning(view), ...tags].join();
    if (state.dataset.key !== key) {
      state.dataset.key = key;
      state.replaceChildren(badge(view.state, tone(view)), ...tags.map((tag) => h("span", { class: "tag" }, tag)), h("span", { class: "meaning" }, meaning(view)));
    }
    const locked = view.state === "locked" ? view.reason : "";
    setText(decision, locked && view.decision.includes(locked) ? "" : view.decision);
    setText(reason, locked);
    todo.hidden = !locked;
    const attempt = Math.max(view.attempt, 0);
    setText(report, `Postmortem of attempt ${attempt}: can it wait, what it cost, how to reset it`);
    report.setAttribute("href", `#/postmortem/${encodeURIComponent(run)}/${attempt}`);
    setText(progress, now(view));
    setText(held, view.held.length ? `Held by the pause: ${view.held.join("; ")}` : "");
    const lines = view.pauses.map((pause) => `Paused by ${pause.who} (${pause.source}): ${pause.why}`);
    if (pauses.dataset.key !== lines.join("\n")) {
      pauses.dataset.key = lines.join("\n");
      pauses.replaceChildren(...lines.map((text) => h("li", {}, text)));
    }
    for (const [name, value] of facts(view)) {
      if (!values.has(name)) {
        const cell = h("dd", {});
        values.set(name, cell);
        list.append(h("div", {}, h("dt", {}, name), cell));
      }
      setText(values.get(name), value);
    }
  }

  async function load() {
    await Promise.all([line.load(), rungs.load(), reports.load()]);
    const view = store.runs.get(run);
    if (view) line.follow(view.seq);
  }

  function update(names) {
    const view = store.runs.get(run);
    body.hidden = head.hidden = !view;
    unknown.hidden = Boolean(view);
    setText(unknown, store.loaded ? `No run of the name ${run} is guarded here.` : "Loading the run.");
    if (!view || !names.has(run)) return;
    show(view);
    commands.update(view);
    if (!present) {
      present = true;
      load();
    } else line.follow(view.seq);
    const key = JSON.stringify([view.promoted, view.active, view.attempt]);
    if (snapshots && snapshots !== key) rungs.load();
    snapshots = key;
  }

  const polling = setInterval(() => {
    if (document.hidden || !present || !store.live()) return;
    if (store.runs.has(run)) show(store.runs.get(run)); // the age of its step
    rungs.load();
    reports.load();
  }, POLL_MS);

  return {
    title: run,
    update,
    refresh: () => present && load(),
    leave: () => clearInterval(polling),
  };
}
