// What if: another strategy, bound or fleet, predicted from the run's own journal, beside the run itself.
import { POST } from "./controls.js";
import { make, card, table, short, duration } from "./dom.js";

export const isOfMoment = false;
export let isMoving = false;
const NUMBERS = [["staleness.max_staleness", "bound", (config) => config.staleness.max_staleness, 0, 8],
  ["rollout.instances", "instances", (config) => config.rollout.instances, 1, 64]];
let chosen = { run: -1, values: {} };
let isGoing = false;
export const isWaiting = () => isGoing;

export async function render(tools) {
  const { here, fetchHere } = tools;
  const run = here.runs[here.run];
  if (!run?.config) return [card("What if", make("p", { class: "bad" }, run?.trouble ?? "There is no run."))];
  if (chosen.run !== here.run) chosen = { run: here.run, values: {} };
  const job = await (await fetchHere("/api/whatif")).json();
  isMoving = isGoing || job.state === "going"; // a form that somebody fills in is left alone
  isGoing = job.state === "going";
  const where = here.at === null ? "from the beginning" : "from the moment of the slider, if groups under way have a place; else from the beginning";
  return [
    card("What if", make("p", { class: "dim" }, `The production core in virtual time, for 30 steps, with the lengths, speeds and times of this run, ${where}. It runs at the lowest priority, beside the run itself.`),
      asking(tools, run.config, job), job.state === "going" ? make("p", { role: "status" }, `${job.changes.join(" ") || "its own settings"}: ${job.progress}`) : null,
      job.state === "failed" ? make("p", { class: "bad", role: "alert" }, job.error) : null,
      job.state === "cancelled" ? make("p", { class: "dim" }, "Cancelled.") : null),
    job.state === "done" ? outcome(job) : null,
  ].filter((one) => one !== null);
}

function asking({ ask, go, here, fetchHere }, config, job) {
  const { run, at: stood } = here, { values: wanted } = chosen; // the form may stand there when another run is chosen
  const note = (key) => (event) => { if (event.target.value === "") delete wanted[key]; else wanted[key] = event.target.value; };
  const number = ([key, words, now, least, most]) => make("label", {}, `${words} `, make("input", { class: "short", type: "number", min: least, max: most, placeholder: String(now(config)), value: wanted[key] ?? "", "data-key": key, oninput: note(key) }));
  const choice = (key, words, values, now) => make("label", {}, `${words} `, make("select", { "data-key": key, onchange: note(key) },
    ["", ...values].map((value) => make("option", { value, selected: value === (wanted[key] ?? "") }, value || `as now (${now})`))));
  const begin = async (event) => {
    event.preventDefault();
    const at = here.run === run ? here.at : stood, changes = { ...wanted }; // the moment may take a while
    try {
      const moment = at === null ? null : await ask("moment", {}, { isPatient: true, run, at });
      await ask("whatif", {}, { ...POST, run, body: JSON.stringify({ changes, at_s: moment === null ? null : moment.now_s }) });
    } catch (error) {
      window.alert(error.message);
    }
    go({ asked: String(Date.now()) });
  };
  return make("form", { onsubmit: begin },
    make("div", { class: "row" }, NUMBERS.map(number),
      make("label", {}, "batches in flight ", make("input", { class: "short", placeholder: String(config.staleness.in_flight_batches), value: wanted["staleness.in_flight_batches"] ?? "", "data-key": "staleness.in_flight_batches", oninput: note("staleness.in_flight_batches") })),
      choice("staleness.strategy", "strategy", job.built_in.strategy, config.staleness.strategy), choice("staleness.routing", "routing", job.built_in.routing, config.staleness.routing),
      choice("staleness.keep_kv", "keep KV over a pull", ["true", "false"], config.staleness.keep_kv)),
    make("div", { class: "row" }, make("button", { disabled: job.state === "going" }, "Predict"),
      job.state === "going" ? make("button", { type: "button", onclick: async () => { await fetchHere("/api/whatif", { ...POST, method: "DELETE" }); go({ asked: String(Date.now()) }); } }, "Cancel") : null));
}

function outcome(job) {
  const found = job.result;
  const row = (name, one) => [name, Math.round(one.tokens_per_s), one.staleness_mean.toFixed(2), one.staleness_max ?? "", one.trainer_idle === undefined ? "" : `${(100 * one.trainer_idle).toFixed(0)} %`, one.rollout_idle === undefined ? "" : `${(100 * one.rollout_idle).toFixed(0)} %`];
  const rows = [...(found.run ? [row("this run, measured", found.run)] : []), row("this run, simulated", found.own), ...(found.changed ? [row(found.changes.join(" "), found.changed)] : [])];
  const gain = found.changed ? found.changed.tokens_per_s / found.own.tokens_per_s - 1 : null;
  return card(`Predicted for ${job.run}, ${found.at_s === null ? "from the beginning" : `from ${duration(found.at_s)} on`}`,
    table(["", "tokens/s", "mean staleness", "largest", "trainer idle", "rollout idle"], rows),
    gain === null ? null : make("p", { class: gain >= 0 ? "good headline" : "warn headline" }, `${gain >= 0 ? "+" : ""}${(100 * gain).toFixed(1)} % tokens per second`),
    found.error === null ? make("p", { class: "warn" }, "The run is too short to say how far off its simulation is.")
      : make("p", { class: Math.abs(found.error) > 0.15 ? "warn" : "dim" }, `The simulation of the run itself is off by ${(100 * found.error).toFixed(1)} % of the tokens per second that were measured.`),
    found.changes.length ? make("p", {}, "As overrides: ", make("code", { class: "mono" }, found.changes.join(" ")), " ", make("button", { onclick: () => navigator.clipboard?.writeText(found.changes.join(" ")) }, "Copy")) : null,
    make("p", { class: "dim" }, `${short(found.own.steps)} steps counted, ${short(Math.round(found.own.seconds))} virtual seconds.`));
}
