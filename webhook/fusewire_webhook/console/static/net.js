// Requests to the webhook that serves this page.

/** A refusal, in the server's sentence. */
export class Refused extends Error {
  constructor(status, message, reason) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

let onSignedOut = () => {};

/** What to do when the server no longer knows this browser. */
export function whenSignedOut(call) {
  onSignedOut = call;
}

/** Report that the server asked for a token; the page asks for it. */
export function signedOut() {
  onSignedOut();
  return new Refused(401, "Your session has ended. Nothing was sent; sign in and send it again.", "signed_out");
}

/** The JSON answer; throws Refused. */
export async function ask(method, path, body) {
  const options = { method, credentials: "same-origin", cache: "no-store", headers: { Accept: "application/json" } };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    // a question may be put twice: a network that changes drops the first one
    response = await fetch(path, options).catch((error) => (method === "GET" ? fetch(path, options) : Promise.reject(error)));
  } catch {
    throw new Refused(0, "The webhook cannot be reached. What was sent may or may not have arrived: look at the timeline.", "network");
  }
  if (response.status === 401) throw signedOut();
  const text = await response.text();
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    value = { error: text.trim() || `the webhook answered ${response.status}`, reason: "http" };
  }
  if (!response.ok) throw new Refused(response.status, value.error ?? `the webhook answered ${response.status}`, value.reason);
  return value;
}

/** Path of a run's resource. */
export const of = (run, resource) => `/api/runs/${encodeURIComponent(run)}${resource ? `/${resource}` : ""}`;
