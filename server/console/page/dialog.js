// The question before an action.

import {byId, say, show, text} from "./dom.js";

// Asks, with `fields` (a node) between text and buttons; `act` is done when the
// user says yes, and the dialog stays, with the reason, while that fails.
// `danger`: what can't be undone.
export function confirm({title, message, yes, danger = false, fields = null, act, done}) {
  const dialog = byId("dialog");
  const before = document.activeElement;
  text(byId("dialog-title"), title);
  text(byId("dialog-text"), message);
  byId("dialog-fields").replaceChildren(...(fields ? [fields] : []));
  show(byId("dialog-problem"), false);
  const button = byId("dialog-yes");
  text(button, yes);
  button.className = danger ? "danger" : "primary";
  button.disabled = false;

  const go = async () => {
    button.disabled = true;
    try {
      await act();
      dialog.close();
      say(done);
    } catch (error) {
      text(byId("dialog-problem"), error.message);
      show(byId("dialog-problem"), true);
    } finally {
      button.disabled = false;
    }
  };
  const enter = (event) => {
    if (event.key === "Enter" && event.target.tagName === "INPUT" && !button.disabled) {
      event.preventDefault();
      go();
    }
  };
  const back = () => dialog.close();
  const closed = () => {
    button.removeEventListener("click", go);
    byId("dialog-no").removeEventListener("click", back);
    dialog.removeEventListener("keydown", enter);
    if (before?.isConnected && before.offsetParent !== null) before.focus();
    else byId("content").focus();
  };
  button.addEventListener("click", go);
  byId("dialog-no").addEventListener("click", back);
  dialog.addEventListener("keydown", enter);
  dialog.addEventListener("close", closed, {once: true});
  dialog.showModal();
  (fields?.querySelector("input") ?? byId("dialog-no")).focus();
}
