// What a person decides: a form with name, reason and, for what stops a process, a confirmation.

import { h, announce, setText } from "./dom.js";
import { ask, of } from "./net.js";
import * as store from "./store.js";
import { number } from "./words.js";

const VERBS = {
  trip: {
    title: "Trip", button: "Trip", danger: true,
    text: "Does what a trip alert does: stops the attempt, moves doubtful snapshots to quarantine, goes back to the last stable one and restarts with a smaller learning rate.",
    possible: (view) => acting(view) && view.live && !view.procedure,
    confirm: (view) => `Stop attempt ${view.attempt} of ${view.run}: its process ends at step ${number(view.step)} or later.`,
  },
  pause: {
    title: "Pause", button: "Pause",
    text: "Holds all automatic actions. The trainer goes on, alerts are recorded, nothing is stopped or promoted.",
    possible: (view) => acting(view),
  },
  resume: {
    title: "Resume", button: "Resume",
    text: "Ends every pause of this run. An alert that it held acts as soon as it is reported again: its rule's keep_firing_for (10 minutes in the packs) reports it even after its values are fine.",
    possible: (view) => view.paused && !view.shut_down,
    dismiss: (view) => view.held.length ? `Dismiss what the pause held (${view.held.join("; ")}): it does not act when it is reported again. A new one does.` : null,
  },
  reset: {
    title: "Reset", button: "Reset and start",
    text: "Lets the locked run start again, with its budgets restored.",
    possible: (view) => view.state === "locked" && !view.shut_down,
    snapshot: "optional",
    confirm: (view, aside) => aside.stable ? `Go back past stable snapshots of ${view.run}.${aside.words}` : "",
  },
  reopen: {
    title: "Reopen", button: "Reopen and start",
    text: "Lets the completed run go on from its newest snapshot. Its command must have more to do, or it completes again at once.",
    possible: (view) => view.state === "completed" && !view.shut_down,
  },
  promote: {
    title: "Promote", button: "Promote",
    text: "Makes a snapshot the stable one although the gate has not passed it. Its files are checked first.",
    possible: (view) => !view.shut_down,
    snapshot: "candidate",
  },
  rollback: {
    title: "Roll back", button: "Roll back", danger: true,
    text: "Goes back to the snapshot you choose. Everything written after it goes to quarantine, stable snapshots too; going back to one of those later brings it back. It takes the place of an action that is under way and costs no budget.",
    possible: (view) => acting(view),
    snapshot: "required",
    confirm: (view, aside) => (view.live
      ? `Stop attempt ${view.attempt} of ${view.run} and discard what it learnt after the snapshot.`
      : `Discard what ${view.run} learnt after the snapshot.`) + aside.words,
  },
};

const acting = (view) => !view.shut_down && view.state !== "locked" && view.state !== "completed";
const SCRATCH = "scratch:";

/** What was typed, by run and verb: a dialog that was closed finds it again. */
const drafts = new Map();

function remembered() {
  try {
    return localStorage.getItem("fusewire.who") ?? "";
  } catch {
    return "";
  }
}

function remember(who) {
  try {
    localStorage.setItem("fusewire.who", who);
  } catch {
    // a browser without storage asks again
  }
}

/** What going back to a snapshot sets aside, in a sentence, and whether stable ones are among it. */
function setAside(rungs, chosen) {
  const target = rungs.find((rung) => rung.name === chosen);
  if (!target && chosen !== SCRATCH) return { words: "", stable: 0 };
  const newer = rungs.filter((rung) => ["promoted", "candidate", "rejected"].includes(rung.state)
    && (!target || rung.attempt > target.attempt || (rung.attempt === target.attempt && rung.step > target.step)));
  const stable = newer.filter((rung) => rung.state === "promoted").length;
  const words = newer.length ? ` To quarantine: ${newer.length} newer ${newer.length === 1 ? "snapshot" : "snapshots"}, ${stable} of them stable.` : "";
  return { words, stable };
}

function targets(kind, rungs) {
  const usable = rungs.filter((rung) => kind === "candidate" ? rung.state === "candidate" || rung.state === "rejected"
    : rung.state === "promoted" || rung.state === "candidate" || (kind !== "candidate" && rung.restorable));
  const options = usable.map((rung) => {
    const links = rung.links?.length ? `, ${rung.links.join(" and ")}` : "";
    return h("option", { value: rung.name }, `step ${number(rung.step)} of attempt ${rung.attempt} (${rung.state}${links})`);
  });
  if (kind === "candidate") return [h("option", { value: "" }, usable.length ? "choose a snapshot" : "there is none that is not stable already"), ...options];
  const first = kind === "optional" ? "as fusewire chooses: the last stable one" : "choose a snapshot";
  return [h("option", { value: "" }, first), ...options, h("option", { value: SCRATCH }, "from scratch, without any snapshot")];
}

/** The buttons of a run. `rungs()` gives its snapshots, `done(sentence)` shows what came of a command. */
export function commandBar(run, { rungs, done }) {
  const bar = h("div", { class: "commands", role: "group", "aria-label": "Commands" });
  const buttons = new Map();
  for (const [verb, what] of Object.entries(VERBS)) {
    const button = h("button", { type: "button", class: what.danger ? "danger" : null, onclick: () => open(run, verb, { rungs, done }) }, `${what.title}…`);
    buttons.set(verb, button);
    bar.append(button);
  }
  return {
    element: bar,
    update(view) {
      for (const [verb, button] of buttons) {
        const hidden = !view || !VERBS[verb].possible(view);
        if (hidden && button === document.activeElement) document.querySelector("h1")?.focus();
        button.hidden = hidden;
      }
    },
  };
}

function open(run, verb, { rungs, done }) {
  const what = VERBS[verb];
  const key = JSON.stringify([run, verb]);
  const draft = drafts.get(key) ?? { why: "" };
  let view = store.runs.get(run);
  let seen = view.seq;
  const decided = view.decision;

  const who = h("input", { id: "command-who", required: true, maxlength: "200", autocomplete: "name", value: remembered() });
  const why = h("textarea", { id: "command-why", required: true, maxlength: "2000", rows: "3" });
  why.value = draft.why;
  why.addEventListener("input", () => drafts.set(key, { why: why.value }));
  const snapshot = what.snapshot
    ? h("select", { id: "command-snapshot", required: what.snapshot !== "optional" }, targets(what.snapshot, rungs()))
    : null;
  const held = what.dismiss?.(view) ?? null;
  const dismiss = held ? h("input", { id: "command-dismiss", type: "checkbox" }) : null;
  const question = () => what.confirm?.(view, setAside(rungs(), snapshot?.value)) ?? "";
  const sure = what.confirm ? h("input", { id: "command-sure", type: "checkbox" }) : null;
  const news = h("p", { class: "news", role: "alert" });
  const problem = h("p", { class: "error", role: "alert" });
  const send = h("button", { type: "submit", class: what.danger ? "danger primary" : "primary" }, what.button);
  const form = h("form", { method: "dialog" },
    h("h2", { id: "command-title" }, `${what.title} ${run}`),
    h("p", { class: "sentence" }, what.text),
    snapshot && [h("label", { for: "command-snapshot" }, "Snapshot"), snapshot],
    h("label", { for: "command-why" }, "Reason (required; the journal keeps it)"), why,
    h("label", { for: "command-who" }, "Your name (required; the journal keeps it)"), who,
    dismiss && h("label", { class: "sure", for: "command-dismiss" }, dismiss, h("span", {}, held)),
    sure && h("label", { class: "sure", for: "command-sure" }, sure, h("span")),
    news, problem,
    h("div", { class: "actions" },
      h("button", { type: "button", onclick: () => end() }, "Cancel"), send));
  const dialog = h("dialog", { class: "command", "aria-labelledby": "command-title" }, form);

  const askAgain = (words = question()) => {
    if (!sure) return;
    sure.checked = false;
    sure.required = words !== "";
    sure.parentElement.hidden = words === "";
    setText(sure.nextElementSibling, words);
  };
  askAgain();
  snapshot?.addEventListener("change", () => askAgain());
  const unlisten = store.listen((names) => {
    const now = store.runs.get(run);
    if (!names.has(run) || !now) return;
    if (now.decision !== decided) setText(news, `Since you opened this: ${now.decision}`);
  });
  const end = () => {
    unlisten();
    dialog.close();
    dialog.remove();
  };
  dialog.addEventListener("close", end, { once: true });

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    setText(problem, "");
    send.disabled = true;
    const body = { who: who.value, why: why.value, source: "console", seen_seq: seen };
    if (snapshot?.value === SCRATCH) body.scratch = true;
    else if (snapshot?.value) body.snapshot = snapshot.value;
    if (dismiss?.checked) body.dismiss = true;
    if (sure?.checked) body.confirm = true;
    try {
      view = await ask("POST", of(run, verb), body);
      remember(who.value);
      drafts.delete(key);
      store.take(view);
      end();
      done(`Journaled: ${verb} by ${who.value.trim()}. ${run} is ${view.state.replace("_", "-")}: ${view.decision}`);
    } catch (error) {
      setText(problem, error.message);
      if (error.reason === "unseen") {
        view = await ask("GET", of(run)).catch(() => view);
        seen = view.seq;
        store.take(view);
        setText(send, `${what.button} all the same`);
        askAgain();
      }
      if (error.reason === "unconfirmed") askAgain(error.message);
      announce(error.message);
    } finally {
      send.disabled = false;
    }
  });

  document.body.append(dialog);
  dialog.showModal();
  (snapshot ?? why).focus();
}
