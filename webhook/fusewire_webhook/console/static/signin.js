// Signing in, on top of whatever the page shows: nothing that was typed below is lost.

import { ask } from "./net.js";

const dialog = document.getElementById("signin");
const why = document.getElementById("signin-why");
const token = document.getElementById("signin-token");
const problem = document.getElementById("signin-error");
const signout = document.getElementById("signout");

let ending;
let onSignedIn = () => {};

/** What to do once a session is open. */
export function whenSignedIn(call) {
  onSignedIn = call;
}

/** Ask for the token, with a sentence that says why. */
export function askForToken(sentence) {
  clearTimeout(ending);
  why.textContent = sentence;
  problem.textContent = "";
  signout.hidden = true;
  if (!dialog.open) dialog.showModal();
}

function opened({ needed, seconds_left: left }) {
  signout.hidden = !needed;
  clearTimeout(ending);
  if (left !== null) {
    const end = () => askForToken("Your session has ended. Sign in again; what you typed is still there.");
    ending = setTimeout(() => { onSignedIn(false); end(); }, Math.min(1000 * left, 2 ** 31 - 1));
  }
  onSignedIn(true);
}

/** Go on where a session is open or none is needed; else ask for the token. */
export async function begin() {
  const session = await ask("GET", "/console/session");
  if (!session.needed || session.seconds_left !== null) opened(session);
  else askForToken("Commands and states of the runs are for people who hold the command token.");
}

document.getElementById("signin-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  problem.textContent = "";
  try {
    const session = await ask("POST", "/console/session", { token: token.value });
    token.value = "";
    dialog.close();
    opened(session);
  } catch (error) {
    problem.textContent = error.message;
    token.select();
  }
});

dialog.addEventListener("cancel", (event) => event.preventDefault());

signout.addEventListener("click", async () => {
  await ask("DELETE", "/console/session");
  onSignedIn(false);
  askForToken("You have signed out.");
});
