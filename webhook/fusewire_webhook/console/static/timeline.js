// A run's journal, newest first: alerts, decisions, snapshots, attempts; trips with their plot.

import { h, arrange, setText } from "./dom.js";
import { ask, of } from "./net.js";
import { figure } from "./plot.js";
import * as store from "./store.js";
import { clock, day } from "./words.js";

const GROUPS = { alerts: "alerts", decisions: "decisions", snapshots: "snapshots", attempts: "attempts", watch: "the watch" };
const GROUP_OF = {
  alert_reported: "alerts", command: "decisions", exit_classified: "decisions", rolled_back: "decisions", rollback_failed: "decisions",
  purge_finished: "decisions", timer_elapsed: "decisions", would_have_acted: "decisions", run_declared: "decisions",
  snapshot_seen: "snapshots", snapshot_promoted: "snapshots", snapshot_rejected: "snapshots", snapshots_removed: "snapshots",
  attempt_started: "attempts", start_failed: "attempts", process_exited: "attempts", stop_confirmed: "attempts", stop_unconfirmed: "attempts",
  monitoring_changed: "watch",
};
const SIGNS = { alerts: "▲", decisions: "◆", snapshots: "▣", attempts: "▶", watch: "◉" };
const FIRST_PAGE = 25;
const LEFT_OUT = "steps_watched";

const group = (entry) => GROUP_OF[entry.kind] ?? "decisions";
const isTrip = (entry) => entry.kind === "alert_reported" && entry.action === "trip" && entry.status === "firing";

/**
 * The entries (newest first) in bunches: what an alert reports again stands with its first report. An alert fires on for
 * minutes after its attempt is gone, and is repeated; a person's command makes news of the present attempt's again.
 * `older` holds the trip alerts of attempts that had been replaced: they stop nothing.
 */
function bunches(entries, present) {
  const starts = entries.findLast((entry) => entry.kind === "attempt_started");
  let attempt = starts ? starts.attempt - 1 : present;
  let first = new Map();
  const found = [];
  const older = new Set();
  for (const entry of [...entries].reverse()) {
    if (entry.kind === "attempt_started") attempt = Math.max(attempt, entry.attempt);
    if (entry.kind === "command") first = new Map([...first].filter(([, [alert]]) => typeof alert.attempt === "number" && alert.attempt !== attempt));
    const key = entry.kind === "alert_reported" && [entry.alertname, entry.attempt, entry.status, (entry.starts_at ?? "").slice(0, 19)].join(" ");
    if (key && first.has(key)) first.get(key).unshift(entry);
    else {
      const bunch = [entry];
      if (key) first.set(key, bunch);
      if (isTrip(entry) && typeof entry.attempt === "number" && entry.attempt < attempt) older.add(entry.seq);
      found.unshift(bunch);
    }
  }
  return { found, older };
}

/** Which entries get a plot: the first firing of each trip alert of an attempt, and what else ended one. */
function plotted(entry, seen) {
  if (entry.kind === "exit_classified" && entry.failure_class === "divergence") return true;
  if (entry.kind === "command" && entry.verb === "trip") return true;
  if (!isTrip(entry)) return false;
  const key = `${entry.alertname} ${entry.attempt}`;
  if (seen.has(key)) return false;
  seen.add(key);
  return true;
}

/** A link to a runbook of the pack, which the webhook serves, or to a web page; anything else is text. */
function runbook(address) {
  const own = /^docs\/runbooks\/(\w+\.md)$/.exec(address);
  if (!own && !/^https?:\/\//.test(address)) return address;
  return h("a", { href: own ? `/console/runbooks/${own[1]}` : address, rel: "noreferrer" }, own ? own[1].replace(".md", "") : address);
}

function details(entry) {
  const lines = [];
  if (entry.kind === "alert_reported") {
    const labels = Object.entries(entry.labels ?? {}).filter(([name]) => !["alertname", "run"].includes(name));
    if (labels.length) lines.push(labels.map(([name, value]) => `${name}=${value}`).join("  "));
    if (entry.annotations?.description) lines.push(entry.annotations.description);
    if (entry.annotations?.runbook_url) lines.push(["runbook: ", runbook(entry.annotations.runbook_url)]);
  }
  if (entry.kind === "rolled_back" && entry.quarantined?.length) lines.push(`quarantined: ${entry.quarantined.join(", ")}`);
  if (entry.kind === "purge_finished" && entry.output) lines.push(entry.output);
  return lines;
}

/** What kind of entry it is, for people. */
function name(entry) {
  if (entry.kind === "alert_reported") return entry.action === "trip" ? "trip alert" : "alert";
  if (entry.kind === "rolled_back" && !entry.quarantined?.length) return "start"; // the first one, after Ctrl-C, after a crash
  return entry.kind.replaceAll("_", " ");
}

class Item {
  constructor(entries, context) {
    const newest = entries[0];
    const oldest = entries.at(-1);
    const kind = group(newest);
    this.count = entries.length;
    this.group = kind;
    this.withPlot = context.plots;
    this.older = context.older;
    const lines = details(newest);
    this.amount = h("span", { class: "repeat" });
    this.element = h("li", { class: `entry ${kind} ${newest.kind}${context.plots ? " trip" : ""}${context.older ? " older" : ""}`, "data-seq": oldest.seq },
      h("time", { datetime: new Date(oldest.at * 1000).toISOString(), title: day(oldest.at) }, clock(oldest.at)),
      h("span", { class: "kind" }, h("span", { "aria-hidden": "true" }, SIGNS[kind]), ` ${name(newest)}`),
      h("div", { class: "what" },
        h("p", { class: "words" }, newest.words, context.older ? " (older attempt: recorded only)" : "", this.amount),
        lines.length ? h("details", {}, h("summary", {}, "details"), lines.map((line) => h("p", { class: "detail" }, line))) : null,
        context.plots ? this.#plot(oldest, context) : null));
    this.show(entries);
  }

  show(entries) {
    this.count = entries.length;
    setText(this.amount, entries.length > 1 ? ` · ${entries.length}×, last at ${clock(entries[0].at)}` : "");
  }

  #plot(entry, { run, catalogue, first }) {
    const holder = h("details", { class: "trip-plot" }, h("summary", {}, "signal around it"));
    let plot = null;
    holder.addEventListener("toggle", async () => {
      if (!holder.open) return;
      if (plot !== null) {
        plot.load();
        return;
      }
      const { signals, alerts } = await catalogue();
      const suggested = [entry.labels?.signal, ...(alerts[entry.alertname] ?? []), "episode_return"].filter(Boolean);
      if (plot !== null) return;
      plot = figure(run, entry.at, { choices: signals, suggested });
      holder.append(plot.element);
      plot.load();
    });
    if (first) holder.open = true;
    return holder;
  }
}

/** The timeline of a run in an element; `follow(seq)` brings it up to a journal number. */
export function timeline(run) {
  const list = h("ol", { class: "timeline", "aria-label": "Timeline, newest first" });
  const hidden = new Set();
  const chips = Object.entries(GROUPS).map(([name, text]) => h("button", {
    type: "button", class: "chip", "aria-pressed": "true",
    onclick: (event) => {
      if (!hidden.delete(name)) hidden.add(name);
      event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(name)));
      render();
    },
  }, h("span", { "aria-hidden": "true" }, SIGNS[name]), ` ${text}`));
  const problem = h("p", { class: "error", role: "alert" });
  const older = h("button", { type: "button", hidden: true, onclick: () => showOlder() }, "Show older entries");
  const element = h("section", { class: "card wide", "aria-labelledby": "timeline-title" },
    h("div", { class: "card-head" }, h("h2", { id: "timeline-title" }, "Timeline"), h("div", { class: "chips small", role: "group", "aria-label": "Kinds of entries" }, chips)),
    problem, list, older);

  let entries = [];
  let known = 0;
  let before = 0;
  let catalogueAsked = null;
  let following = null;
  let most = FIRST_PAGE;
  let wanted = 0;
  const items = new Map();
  const days = new Map();

  const catalogue = () => (catalogueAsked ??= ask("GET", of(run, "signals")).catch(() => {
    catalogueAsked = null;
    return { signals: [], alerts: {} };
  }));

  function render() {
    const seen = new Set();
    const { found, older: stale } = bunches(entries, store.runs.get(run)?.attempt ?? -1);
    const plots = new Set([...found].reverse().map((bunch) => bunch.at(-1)).filter((entry) => !stale.has(entry.seq) && plotted(entry, seen)).map((entry) => entry.seq));
    const newestPlot = Math.max(...plots, 0);
    const all = found.filter(([entry]) => !hidden.has(group(entry)));
    const grouped = all.slice(0, most);
    const wanted = [];
    let today = "";
    for (const [index, bunch] of grouped.entries()) {
      const oldest = bunch.at(-1);
      const date = day(oldest.at);
      if (date !== today) {
        today = date;
        if (!days.has(date)) days.set(date, h("li", { class: "day" }, date));
        if (index > 0 || date !== day(Date.now() / 1000)) wanted.push(days.get(date));
      }
      let item = items.get(oldest.seq);
      if (!item || item.withPlot !== plots.has(oldest.seq) || item.older !== stale.has(oldest.seq)) {
        item = new Item(bunch, { run, catalogue, plots: plots.has(oldest.seq), older: stale.has(oldest.seq), first: oldest.seq === newestPlot });
        items.set(oldest.seq, item);
      } else item.show(bunch);
      wanted.push(item.element);
    }
    arrange(list, wanted);
    older.hidden = before === 0 && all.length <= most;
  }

  async function guarded(work) {
    try {
      await work();
      setText(problem, "");
    } catch (error) {
      setText(problem, error.message);
    }
  }

  const load = () => guarded(async () => {
    const page = await ask("GET", of(run, "timeline"));
    entries = page.entries;
    before = page.before;
    known = Math.max(known, entries[0]?.seq ?? 0);
    render();
  });

  const loadOlder = () => guarded(async () => {
    const page = await ask("GET", `${of(run, "timeline")}?before=${before}`);
    entries = [...entries, ...page.entries];
    before = page.before;
    render();
  });

  const showOlder = () => {
    most += 2 * FIRST_PAGE;
    render();
    if (list.querySelectorAll(".entry").length < most && before > 0) loadOlder();
  };

  const follow = (seq) => {
    wanted = Math.max(wanted, seq);
    following ??= guarded(async () => {
      while (wanted > known) {
        const page = await ask("GET", `${of(run, "log")}?after=${known}&limit=1000`);
        const fresh = page.entries.filter((entry) => entry.kind !== LEFT_OUT);
        known = page.entries.at(-1)?.seq ?? wanted;
        entries = [...fresh.reverse(), ...entries];
        if (fresh.length) render();
      }
    }).finally(() => { following = null; });
  };

  return { element, load, follow };
}
