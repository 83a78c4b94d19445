// The page: connection, notices, and which view the address names.

import { h, arrange, setText } from "./dom.js";
import { fleet } from "./fleet.js";
import { whenSignedOut } from "./net.js";
import { postmortemPage } from "./postmortem.js";
import { runPage } from "./run.js";
import { askForToken, begin, whenSignedIn } from "./signin.js";
import * as store from "./store.js";
import { Stream } from "./stream.js";
import { clock } from "./words.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const notices = document.getElementById("notices");

let view = null;
let lastNews = 0;

const stream = new Stream({
  event(name, data) {
    lastNews = Date.now() / 1000;
    if (name === "overview") takeOverview(data);
    else if (name === "watch") store.takeWatch(data);
    else if (name === "steps") store.takeSteps(data);
    else if (name === "watches") store.takeWatches(data);
    else if (name === "run") store.take(data.view);
  },
  state: show,
  signedOut: ended,
});

function show(state, why) {
  store.setLive(state === "live");
  connection.dataset.state = state;
  const words = {
    live: "live",
    lost: lastNews ? `connection lost, state of ${clock(lastNews)}` : why || "the webhook does not answer",
    away: "resting while the tab is hidden",
    out: "signed out",
  };
  setText(connection, words[state]);
  document.body.dataset.stale = String(state === "lost" || state === "out");
  title();
}

function ended() {
  leave();
  askForToken("Your session has ended. Sign in again; what you typed is still there.");
}

function leave() {
  stream.stop();
  show("out");
}

/** What the address names: #/run/NAME, #/postmortem/NAME[/ATTEMPT]; everything else is all runs. */
function page() {
  const [, kind, name, attempt] = /^#\/(run|postmortem)\/([^/]+)(?:\/(\d*))?$/.exec(location.hash) ?? [];
  const run = name && decoded(name);
  if (!run) return fleet(main);
  return kind === "run" ? runPage(main, run) : postmortemPage(main, run, attempt);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

function route() {
  view?.leave();
  main.replaceChildren();
  view = page();
  view.update(new Set(store.runs.keys()));
}

function takeOverview(overview) {
  if (store.takeOverview(overview)) route(); // the page rests on a journal that is gone
}

function notice(kind, title, lines) {
  return h("section", { class: `notice ${kind}`, role: "region", "aria-label": title },
    h("strong", {}, title), h("ul", {}, lines.map((line) => h("li", {}, line))));
}

let shown = "";

function showNotices() {
  const { monitoring, strangers } = store;
  const key = JSON.stringify([monitoring.problems, monitoring.remarks, strangers]);
  if (key === shown) return;
  shown = key;
  const wanted = [];
  if (monitoring.degraded) {
    const lines = Object.entries(monitoring.problems).map(([part, problem]) => `${part}: ${problem}`);
    wanted.push(notice("warning", "The watch is degraded: nothing is promoted, no run is touched", lines));
  }
  const remarks = Object.entries(monitoring.remarks).map(([part, remark]) => `${part}: ${remark}`);
  if (remarks.length) wanted.push(notice("plain", "A changed configuration is not in use", remarks));
  if (strangers.length) {
    const lines = strangers.slice(0, 5).map((s) => `${s.alertname} for ${s.run}, ${s.count}×, last at ${clock(s.last_at)}`);
    if (strangers.length > 5) lines.push(`and ${strangers.length - 5} more`);
    wanted.push(notice("plain", "Alerts for runs that are not guarded here", lines));
  }
  arrange(notices, wanted);
}

function title() {
  let needing = 0;
  for (const run of store.runs.values()) needing += run.state === "locked" || run.state === "open";
  const count = document.body.dataset.stale === "true" ? "?" : needing;
  document.title = `${count ? `(${count}) ` : ""}${view?.title ? `${view.title} · ` : ""}fusewire`;
}

store.listen((names) => {
  showNotices();
  view?.update(names);
  title();
});

window.addEventListener("hashchange", () => {
  route();
  title();
  main.focus();
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
whenSignedOut(ended);
whenSignedIn((open) => {
  if (open) {
    stream.start();
    view?.refresh?.();
  } else leave();
});

document.body.dataset.started = "true"; // for boot.js
route();

function start() {
  begin().catch((error) => {
    setText(connection, error.message);
    setTimeout(start, 2_000);
  });
}

start();
