// Controls: orders to a run that goes on, each with a reason and in the journal; those given so far; and where a worker stands.
import { make, card, table, duration } from "./dom.js";

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

const POST = { atMoment: false, method: "POST", headers: { "content-type": "application/json", "x-staleflow-act": "1" } };

export async function render(tools) {
  const { ask, here } = tools;
  const run = here.runs[here.run];
  const soFar = make("div", {}, await given(tools));
  const listed = card("Orders so far", soFar);
  if (!here.mayAct) return [card("Controls", make("p", { class: "dim" }, "This view may only look (--read-only).")), listed];
  if (run.state !== "live") return [card("Controls", make("p", { class: "dim" }, "The run does not go on, so nobody could obey.")), listed];
  const answer = make("p", { role: "status" });
  const refresh = async () => soFar.replaceChildren(await given(tools));
  return [card("Answer", answer), ...ORDERS.map(([action, title, words, argument]) => card(title, make("p", { class: "dim" }, words),
    make("form", { onsubmit: (event) => { event.preventDefault(); give(ask, action, title, new FormData(event.target), answer).then(refresh); } },
      make("div", { class: "row" }, argument ? make("input", { name: "argument", placeholder: argument, required: true, "aria-label": argument }) : null,
        make("input", { name: "why", placeholder: "why", "aria-label": "why" }), make("button", {}, title))))), standing(ask), listed];
}

/** The orders in the journal; what came of one are the commands of its event. */
async function given({ ask, go }) {
  const { orders, error } = await ask("orders", {}, { atMoment: false }).catch((error) => ({ orders: [], error: error.message }));
  if (error) return make("p", { class: "bad" }, error);
  if (!orders.length) return make("p", { class: "dim" }, "None.");
  return table(["event", "second", "who", "order", "why"], orders.map((one) => [
    make("a", { href: "#", onclick: (event) => { event.preventDefault(); go({ page: "why", at: one.number }); } }, String(one.number)),
    duration(one.now_s), one.who, `${one.action} ${one.argument}`, one.why]));
}

/** A question to a worker of this machine: where do all its threads stand? */
function standing(ask) {
  const found = make("div", { role: "log", "aria-label": "stacks" });
  const see = async (event) => {
    event.preventDefault();
    const worker = new FormData(event.target).get("worker");
    found.replaceChildren(make("p", { class: "dim" }, "…"));
    const answer = await ask("stacks", {}, { ...POST, body: JSON.stringify({ worker }) }).catch((error) => ({ stacks: [], error: error.message }));
    found.replaceChildren(...(answer.error ? [make("p", { class: "bad" }, answer.error)] : []),
      ...answer.stacks.flatMap((one) => [make("p", {}, `${one.name} (pid ${one.pid})`), make("pre", { class: "story" }, one.text)]));
  };
  return card("Where a worker stands", make("p", { class: "dim" }, "Each of its processes writes the Python stacks of all its threads to its log, and goes on."),
    make("form", { onsubmit: see }, make("div", { class: "row" },
      make("input", { name: "worker", size: 32, placeholder: "controller, or a worker's name", required: true, "aria-label": "controller, or a worker's name" }), make("button", {}, "Stacks"))), found);
}

async function give(ask, action, title, words, answer) {
  const argument = words.get("argument") ?? "";
  if (!window.confirm(`${title}${argument ? ` ${argument}` : ""}?`)) return;
  answer.textContent = "…";
  try {
    const found = await ask("actions", {}, { ...POST, body: JSON.stringify({ action, argument, why: words.get("why") }) });
    answer.className = "good";
    answer.textContent = found.answer;
  } catch (error) {
    answer.className = "bad";
    answer.textContent = error.message;
  }
}
