// What the page knows: the runs, the watch, alerts of strangers. Changes are handed out once a frame.

import { announce } from "./dom.js";
import { label } from "./words.js";

export const runs = new Map();
export let monitoring = { degraded: false, problems: {}, remarks: {} };
export let strangers = [];
export let loaded = false;

let connected = false;

/** Whether the stream of changes is open: while it is not, nothing else is asked for by itself. */
export const live = () => connected;

/** Note that the stream opened or ended. */
export function setLive(state) {
  connected = state;
}

const listeners = new Set();
let changed = new Set();
let scheduled = false;

/** Call `listener(names of changed runs)` after changes; returns how to stop that. */
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function schedule() {
  if (scheduled) return;
  scheduled = true;
  const flush = () => {
    scheduled = false;
    const names = changed;
    changed = new Set();
    for (const listener of [...listeners]) listener(names);
  };
  if (document.hidden) setTimeout(flush, 0);
  else requestAnimationFrame(flush);
}

/** Take a run's picture, unless a newer one is known. */
export function take(view) {
  if (runs.get(view.run)?.seq > view.seq) return;
  put(view);
}

function put(view) {
  const before = runs.get(view.run);
  runs.set(view.run, view);
  changed.add(view.run);
  if (before && (before.state !== view.state || before.paused !== view.paused)) {
    const paused = view.paused ? ", paused" : "";
    announce(`${view.run} is ${label(view.state)}${paused}: ${view.decision}`);
  }
  schedule();
}

/** Take everything, as it is; runs that are guarded no longer go. True: it is of another journal. */
export function takeOverview(overview) {
  const anew = overview.runs.some((view) => runs.get(view.run)?.seq > view.seq);
  const names = new Set(overview.runs.map((view) => view.run));
  for (const name of runs.keys()) {
    if (!names.has(name)) {
      runs.delete(name);
      changed.add(name);
    }
  }
  overview.runs.forEach(put);
  takeWatch(overview);
  loaded = true;
  return anew;
}

/** Take how far runs have come: `{run: step}`. */
export function takeSteps(steps) {
  const at = Date.now() / 1000;
  for (const [run, step] of Object.entries(steps)) {
    const view = runs.get(run);
    if (view) put({ ...view, step, watch: view.watch && { ...view.watch, step_at: at } });
  }
}

/** Take whether the rules see runs: `{run: watch}`. */
export function takeWatches(watches) {
  for (const [run, watch] of Object.entries(watches)) if (runs.has(run)) put({ ...runs.get(run), watch });
}

/** Take what is told besides the runs: the state of the watch, alerts of strangers. */
export function takeWatch(news) {
  const { degraded } = monitoring;
  monitoring = news.monitoring;
  strangers = news.unknown_alerts;
  if (loaded && degraded !== monitoring.degraded) {
    announce(monitoring.degraded ? "The watch is degraded" : "The watch is whole again");
  }
  schedule();
}
