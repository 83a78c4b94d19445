// How states, times and numbers are put for people.

export const STATES = ["locked", "open", "half_open", "closed", "completed"];

const LABELS = { locked: "locked", open: "open", half_open: "half-open", closed: "closed", completed: "completed" };
const SIGNS = { locked: "■", open: "○", half_open: "◐", closed: "●", completed: "✓" };
const MEANINGS = {
  locked: "stopped; it needs a person",
  open: "an action is under way",
  half_open: "restarted, on probation",
  closed: "training, watched",
  completed: "finished on purpose",
};

export const label = (state) => LABELS[state] ?? state;
export const sign = (state) => SIGNS[state] ?? "?";

/** What the state means for this run, in a few words. */
export function meaning(view) {
  if (view.shut_down) return "ended with its webhook; the next start continues it";
  if (view.state === "locked" && view.live) return "it needs a person; its process may still run";
  if (view.state === "closed" && !view.live) return "no process is running";
  if (unwatched(view)) return `not watched: ${unwatched(view)}`;
  if (view.state === "closed" && view.watch?.state !== "watched") return "training, not seen by Prometheus yet";
  return MEANINGS[view.state] ?? "";
}

/** Why no rule sees the run's attempt; empty: one does, or it is too early to say. */
export function unwatched(view) {
  const { state, since } = view.watch ?? {};
  if (state === "unattached") return `the trainer has not called fusewire.attach() since ${clock(since)}, so nothing judges it`;
  return state === "unscraped" ? `not scraped since ${clock(since)}, so no rule sees it` : "";
}

const STILL_SECONDS = 30;

/** The step, with its age where it has not changed for long; whether that is long for this trainer the rules say. */
export function step(view) {
  const age = view.live && view.watch?.step_at ? Date.now() / 1000 - view.watch.step_at : 0;
  return age > STILL_SECONDS ? `${number(view.step)}, ${span(age)} ago` : number(view.step);
}

const pad = (number) => String(number).padStart(2, "0");

/** Time of day, in the browser's zone. */
export function clock(seconds) {
  const at = new Date(seconds * 1000);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

/** The day, such as 2026-03-01. */
export function day(seconds) {
  const at = new Date(seconds * 1000);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
}

export const moment = (seconds) => `${day(seconds)} ${clock(seconds)}`;

/** A number for people: grouped where it is whole, four digits where it is not. */
export function number(value) {
  if (typeof value !== "number") return String(value ?? "–");
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

/** Bytes with a decimal prefix, as the command line has them. */
export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) [count, unit] = [count / 1000, unit + 1];
  return `${unit ? count.toFixed(1) : count} ${units[unit]}`;
}

/** A span such as "5 min". */
export function span(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

/** What a run in observe mode has to tell of itself; empty where its mode is act. */
export function observing(view) {
  const seen = Object.entries(view.would_have_tripped ?? {}).map(([alert, times]) => `${alert} ${times}×`);
  return view.mode !== "observe" ? "" : seen.length ? `observing; would have tripped: ${seen.join(", ")}` : "observing";
}

/** The colour of a run: green is one that nothing would have stopped. */
export const tone = (view) => (view.state === "closed" && observing(view).includes(";") ? "half_open" : view.state);
