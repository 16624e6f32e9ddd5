// Controls: orders to a run that goes on, each with a reason and in the journal; those given so far; and where a worker stands.
import { make, card, table, duration } from "./dom.js";
import { Reading } from "./reading.js";

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

const AGAIN_MS = 2000; // until the next look at the orders of a run that goes on
const MOST_ANSWERED = 20; // of the newest orders: for each the core is brought to its moment
const SHOWN_ORDERS = 200; // answers that are remembered
const answers = new Map(); // by run and event: what came of an order
export const POST = { atMoment: false, method: "POST", headers: { "content-type": "application/json", "x-staleflow-act": "1" } };

export async function render({ ask: askShown, go, here }) {
  const number = here.run, run = here.runs[number];
  const ask = (path, words, options) => askShown(path, words, { ...options, run: number }); // a form may stand there when another run is chosen
  const soFar = make("div", {}), tools = { ask, go, here, number };
  const listed = card("Orders so far", soFar);
  list(soFar, tools).then(() => follow(soFar, tools));
  if (!here.mayAct) return [card("Controls", make("p", { class: "dim" }, "This view may only look (--read-only).")), listed];
  if (run.state !== "live") return [card("Controls", make("p", { class: "dim" }, "The run does not go on, so nobody could obey.")), listed];
  return [...ORDERS.map((order) => form(order, ask, run.name, () => list(soFar, tools))), standing(ask), listed];
}

/** One order, with the run's answer beside its button. */
function form([action, title, words, argument], ask, name, after) {
  const answer = make("span", { role: "status" });
  return card(title, make("p", { class: "dim" }, words),
    make("form", { onsubmit: (event) => { event.preventDefault(); give(ask, name, { action, title }, new FormData(event.target), answer).then(after); } },
      make("div", { class: "row" }, argument ? make("input", { name: "argument", placeholder: argument, required: true, "aria-label": argument }) : null,
        make("input", { name: "why", placeholder: "why", "aria-label": "why" }), make("button", {}, title), answer)));
}

/** Look again as long as the page stands there and the run goes on. */
function follow(place, tools) {
  setTimeout(async () => {
    if (!place.isConnected) return;
    if (!document.hidden && tools.here.runs[tools.number].state === "live") await list(place, tools);
    follow(place, tools);
  }, AGAIN_MS);
}

/** The orders in the journal, and what the run answered to each; what stands there stays if nothing is new. */
async function list(place, { ask, go, number: run }) {
  const { orders, error } = await ask("orders", {}, { atMoment: false }).catch((error) => ({ orders: [], error: error.message }));
  const shown = () => JSON.stringify([orders, error, orders.map((one) => answers.get(`${run} ${one.number}`))]);
  const draw = () => {
    if (place.dataset.shown === shown()) return;
    place.dataset.shown = shown();
    place.replaceChildren(error ? make("p", { class: "bad" }, error) : orders.length ? tableOf(orders, run, go) : make("p", { class: "dim" }, "None."));
  };
  draw();
  for (const { number } of orders.slice(0, MOST_ANSWERED).filter((one) => !answers.has(`${run} ${one.number}`))) {
    const moment = await read(place, () => ask("moment", { event: number }, { atMoment: false })).catch(() => null);
    if (moment === null) return;
    answers.set(`${run} ${number}`, moment.event?.answer ?? null);
    if (answers.size > SHOWN_ORDERS) answers.delete(answers.keys().next().value);
  }
  draw();
}

/** An answer for which the journal is read on as long as the page stands there; null once it does not. */
async function read(place, look) {
  while (place.isConnected) {
    const found = await look().catch((error) => { if (error instanceof Reading) return null; throw error; });
    if (found !== null) return found;
  }
  return null;
}

function tableOf(orders, run, go) {
  const outcome = (one) => {
    const answer = answers.get(`${run} ${one.number}`);
    return answer === undefined || answer === null ? "" : make("span", { class: answer.is_refused ? "bad" : "" }, answer.is_refused ? `refused: ${answer.text}` : answer.text);
  };
  const whole = (words) => make("span", { class: "whole" }, words);
  return table(["event", "second", "who", "order", "why", "answer"], orders.map((one) => [
    make("a", { href: "#", onclick: (event) => { event.preventDefault(); go({ page: "why", run, at: one.number }); } }, String(one.number)),
    whole(duration(one.now_s)), one.who, `${one.action} ${one.argument}`, make("span", { class: "long" }, one.why), outcome(one)]));
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

async function give(ask, name, { action, title }, words, answer) {
  const argument = (words.get("argument") ?? "").trim();
  if (!window.confirm(`${name}: ${title}${argument ? ` ${argument}` : ""}?`)) return;
  answer.textContent = "…";
  try {
    const found = await ask("actions", {}, { ...POST, body: JSON.stringify({ action, argument, why: words.get("why") }) });
    answer.className = "good";
    answer.textContent = found.answer;
  } catch (error) {
    answer.className = "bad";
    answer.textContent = error.message;
  }
  answer.scrollIntoView({ block: "nearest" });
}
