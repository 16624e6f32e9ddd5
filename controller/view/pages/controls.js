// Controls: orders to a run that goes on. Each asks for a reason, and stands in the journal.
import { make, card } from "./dom.js";

export const isMoving = false, isOfMoment = false;
const ORDERS = [
  ["pause", "Pause", "What runs goes on to its end; no prompt starts, and no batch goes to the trainer.", null],
  ["unpause", "Unpause", "The run goes on.", null],
  ["checkpoint", "Save a checkpoint", "Of the newest version, as soon as the trainer is free.", null],
  ["evaluate", "Evaluate", "Answer the held-out prompts at the newest version.", null],
  ["abort", "Give up a group", "A fresh prompt takes its place.", "number of the group"],
  ["drain", "Drain a worker", "It hands back what it has, and leaves.", "name of the worker"],
  ["set", "Change a live key", "It counts from now on; a new start reads the file again.", "samples.groups=8"],
];

export async function render({ ask, here }) {
  const run = here.runs[here.run];
  if (!here.mayAct) return [card("Controls", make("p", { class: "dim" }, "This view may only look (--read-only)."))];
  if (run.state !== "live") return [card("Controls", make("p", { class: "dim" }, "The run does not go on, so nobody could obey."))];
  const answer = make("p", { role: "status" });
  return [card("Answer", answer), ...ORDERS.map(([action, title, words, argument]) => card(title, make("p", { class: "dim" }, words),
    make("form", { onsubmit: (event) => { event.preventDefault(); give(ask, action, title, new FormData(event.target), answer); } },
      make("div", { class: "row" }, argument ? make("input", { name: "argument", placeholder: argument, required: true, "aria-label": argument }) : null,
        make("input", { name: "why", placeholder: "why", "aria-label": "why" }), make("button", {}, title)))))];
}

async function give(ask, action, title, words, answer) {
  const argument = words.get("argument") ?? "";
  if (!window.confirm(`${title}${argument ? ` ${argument}` : ""}?`)) return;
  answer.textContent = "…";
  try {
    const found = await ask("actions", {}, {
      atMoment: false, method: "POST", headers: { "content-type": "application/json", "x-staleflow-act": "1" },
      body: JSON.stringify({ action, argument, why: words.get("why") }),
    });
    answer.className = "good";
    answer.textContent = found.answer;
  } catch (error) {
    answer.className = "bad";
    answer.textContent = error.message;
  }
}
