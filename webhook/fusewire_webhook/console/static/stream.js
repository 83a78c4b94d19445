// Server-sent events by fetch: unlike EventSource it shows the status (401) and the heartbeats, so that a connection
// that died silently is noticed and the page never looks live when it is not.

import { ask } from "./net.js";

const SILENCE_MS = 15_000; // the server beats every 5 s
const HIDDEN_MS = 60_000; // a browser has six connections to a host: hidden tabs give theirs back
const AWAY_MS = 30_000; // and look at all runs so often, so that their title stays true
const FIRST_RETRY_MS = 250;
const LONGEST_RETRY_MS = 5_000;

/** Follows /api/events: on.event(name, data), on.state("live" | "lost" | "away", why), on.signedOut(). */
export class Stream {
  constructor(on) {
    this.on = on;
    this.retry = FIRST_RETRY_MS;
    this.wanted = false;
    document.addEventListener("visibilitychange", () => this.#visibility());
  }

  start() {
    if (this.wanted) return;
    this.wanted = true;
    this.#follow();
  }

  stop() {
    this.wanted = this.away = false;
    clearTimeout(this.later);
    this.abort?.abort();
  }

  #visibility() {
    clearTimeout(this.hiding);
    if (document.hidden) {
      this.hiding = setTimeout(() => {
        if (!this.wanted) return;
        this.stop();
        this.away = true;
        this.#rest();
      }, HIDDEN_MS);
    } else if (this.away) {
      this.stop();
      this.start();
    }
  }

  async #rest() {
    try {
      const overview = await ask("GET", "/api/runs");
      if (!this.away) return;
      this.on.event("overview", overview);
      this.on.state("away");
    } catch (error) {
      if (this.away) this.on.state("lost", error.message);
    }
    if (this.away) this.later = setTimeout(() => this.#rest(), AWAY_MS);
  }

  async #follow() {
    const abort = (this.abort = new AbortController());
    let why = "";
    let silence = setTimeout(() => abort.abort(), SILENCE_MS);
    try {
      const response = await fetch("/api/events", { credentials: "same-origin", cache: "no-store", signal: abort.signal });
      if (response.status === 401) {
        this.wanted = false;
        this.on.signedOut();
        return;
      }
      if (!response.ok) why = (await response.text()).trim();
      if (!response.ok) return;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        clearTimeout(silence);
        silence = setTimeout(() => abort.abort(), SILENCE_MS);
        const messages = (rest + value).split("\n\n");
        rest = messages.pop();
        messages.forEach((message) => this.#message(message));
      }
    } catch {
      // the connection is gone; it is opened again below
    } finally {
      clearTimeout(silence);
      if (this.wanted && this.abort === abort) {
        this.on.state("lost", why);
        this.later = setTimeout(() => this.#follow(), this.retry);
        this.retry = Math.min(2 * this.retry, LONGEST_RETRY_MS);
      }
    }
  }

  #message(text) {
    const fields = {};
    for (const line of text.split("\n")) {
      const colon = line.indexOf(": ");
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
    }
    if (!fields.event) return;
    this.retry = FIRST_RETRY_MS;
    this.on.event(fields.event, JSON.parse(fields.data));
    this.on.state("live");
  }
}
