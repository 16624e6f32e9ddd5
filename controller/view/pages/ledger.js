// Ledger: one column per batch of the window, a place per group, and the groups that the next batch waits for.
import { make, card, table, short, duration } from "./dom.js";
import { bar, isSupervised } from "./now.js";
import { Reading } from "./reading.js";

export const isMoving = true, isOfMoment = true;
let isBehind = false; // the history is being read
export const isWaiting = () => isBehind;
const RULES = {
  bound: ["--bad", "bound", "staleness.max_staleness: a prompt that starts now could come too late for its batch"],
  cap: ["--warn", "cap on batches in flight", "staleness.in_flight_batches, or the rule of admission"],
  capacity: ["--accent", "no capacity", "what has started goes first, or no instance takes more: rollout.instances, rollout.max_running, routing"],
  prompts: ["--v4", "no prompt", "none is read and encoded: data, reward.workers"],
  weights: ["--v3", "no weights yet", "the first version is not published"],
  paused: ["--dim", "paused", "by an operator"],
  ending: ["--good", "the run ends", "nothing more is started"],
};
const STATES = { occupied: "scored, waits for its batch", scoring: "being scored", generating: "generating, as high as it is done", queued: "queued: no response of it runs", training: "with the trainer" };

export async function render({ ask, go, here }) {
  const ledger = await ask("ledger");
  const starts = await ask("starts").catch((error) => {
    if (error instanceof Reading) throw error;
    return { trouble: error.message }; // of the history alone: the ledger is there
  });
  isBehind = !starts.trouble && starts.passed < starts.of;
  const open = (id) => go({ page: "group", group: id });
  const isOver = ledger.state === "over" && ledger.number >= ledger.last;
  const columns = ledger.columns.map((column) => batch(column, ledger, isOver, open));
  if (ledger.training.groups.length) {
    columns.unshift(make("div", { class: "column" }, make("h3", {}, `v${ledger.training.train_version} → v${ledger.training.train_version + 1}, with the trainer`),
      make("div", { class: "places" }, ledger.training.groups.map((group) => place(group, open)))));
  }
  return [
    card(null, make("p", { class: "headline" }, isOver ? `The run is over after ${short(ledger.training.train_version)} step${ledger.training.train_version === 1 ? "" : "s"}` : `The next step waits for ${ledger.waiting_for}`),
      make("p", { class: "dim" }, `Batches of ${ledger.batch_groups} groups; bound ${ledger.max_staleness}; ${ledger.reserved} groups under way, `
        + `${ledger.occupied} scored; ${short(ledger.fresh)} encoded prompts have not started.`),
      make("div", { class: "columns" }, columns),
      make("div", { class: "legend" }, Object.entries(STATES).map(([state, words]) => make("span", {}, make("i", { class: `swatch-${state}`, style: { background: colourOf(state) } }), words)),
        make("span", {}, make("i", { style: { border: "2px solid var(--bad)" } }), "due now: the batch cannot go without it"),
        isOver ? null : make("span", {}, make("i", { style: { border: "1px dashed var(--dim)" } }), "free"))),
    isSupervised(here) ? null : card(`Why not more: what kept the next prompt from starting${starts.steps ? `, over the last ${starts.steps.length - 1} steps` : ""}`, ...whyNotMore(starts)),
    isOver ? null : card("Who the next batch waits for", ...predicted(ledger, starts), ledger.waits.length ? table(["group", "state", "", "generated", "responses"], ledger.waits.map((wait) => [
      make("a", { href: "#", onclick: (event) => { event.preventDefault(); open(wait.group); } }, String(wait.group)), wait.state, wait.is_due ? make("span", { class: "bad" }, "due now") : "",
      wait.state === "scoring" ? "" : wait.left_s === null ? "–" : make("span", { class: wait.left_s === ledger.left_s ? "warn" : "" }, `in ~ ${duration(wait.left_s)}`),
      wait.state === "scoring" ? (wait.scorer ? `its rewards from ${wait.scorer}` : "a reward worker")
        : wait.members.map((one) => `.${one.member} ${one.where ? `on ${one.where}, ${one.tokens} of about ${one.expected} tokens` : `queued with ${one.tokens} tokens`}`).join("; ")
          + (wait.more ? ` and ${wait.more} more` : "")])) : make("p", { class: "dim" }, "Nothing that is under way: it is complete, or no group has started.")),
  ].filter((one) => one !== null);
}

/** When the last of them is generated, as predicted now, and how right that was before. */
function predicted(ledger, starts) {
  if (!ledger.waits.length || ledger.left_s === null) return [];
  const { predictions = 0, error_s, mean_s } = starts.predicted ?? {};
  return [make("p", {}, `The last of them is generated in about ${duration(ledger.left_s)}`, predictions
    ? make("span", { class: "dim" }, `; the last ${predictions} prediction${predictions === 1 ? " was" : "s were"} off by ${duration(error_s)}, of ${duration(mean_s)}`) : null)];
}

function whyNotMore(starts) {
  if (starts.trouble && !starts.steps) return [make("p", { class: "bad" }, starts.trouble)];
  const colours = Object.fromEntries(Object.entries(RULES).map(([rule, [colour]]) => [rule, colour]));
  const held = Object.fromEntries(starts.rules.filter((rule) => starts.seconds[rule]).map((rule) => [rule, starts.seconds[rule]]));
  const most = Object.keys(held).sort((one, other) => held[other] - held[one])[0];
  return [
    bar(held, colours, duration, (rule) => RULES[rule][1]),
    make("div", { class: "strips" }, starts.steps.map(({ step, seconds }, place) => strip(place === starts.steps.length - 1 ? "now" : `step ${step}`, seconds, starts.rules))),
    make("p", { class: "dim" }, most ? `${RULES[most][1]} most of the time: ${RULES[most][2]}. ` : "", `From ${duration(starts.begin_s)} to ${duration(starts.end_s)}; a column per step.`),
    starts.trouble ? make("p", { class: "bad" }, starts.trouble)
      : starts.passed < starts.of ? make("p", { class: "warn", role: "status" }, `reading the history: ${short(starts.passed)} of ${short(starts.of)} events`) : null,
  ].filter((one) => one !== null);
}

/** One step: its shares from bottom to top. */
function strip(name, seconds, rules) {
  const all = Object.values(seconds).reduce((sum, one) => sum + one, 0);
  const words = rules.filter((rule) => seconds[rule]).map((rule) => `${RULES[rule][1]} ${duration(seconds[rule])}`).join(", ");
  return make("span", { class: "strip", title: `${name}: ${words || "no time"}`, role: "img", "aria-label": `${name}: ${words || "no time"}` },
    rules.filter((rule) => seconds[rule]).map((rule) => make("i", { style: { height: `${(100 * seconds[rule]) / all}%`, background: `var(${RULES[rule][0]})` } })));
}

/** Whether all that it lacks waits for a place at an instance. */
const isQueued = (group) => group.state === "generating" && group.queued > 0 && group.queued + group.finished >= group.size;

const colourOf = (state) => ({ queued: "var(--dim)", occupied: "var(--good)", scoring: "var(--warn)", generating: "var(--accent)", training: "var(--v3)" })[state];

function batch(column, ledger, isOver, open) {
  const free = column.free < 0 || isOver ? 0 : Math.max(0, Math.min(column.free, ledger.batch_groups - column.groups.length));
  const isNext = column.train_version === ledger.train_version && !isOver;
  const drawn = column.groups.filter((group) => group.state === "occupied").length, later = column.occupied - drawn; // a group is drawn at its deadline
  return make("div", { class: "column" },
    make("h3", {}, `${isNext ? "next: " : ""}v${column.train_version} → v${column.train_version + 1}`),
    make("div", { class: "places" }, column.groups.map((group) => place(group, open)),
      Array.from({ length: free }, () => make("span", { class: "place free", title: "a group may start here" }))),
    make("p", { class: "dim" }, isOver ? `left at the end: ${drawn} scored, ${column.reserved} under way`
      : `${column.state.toLowerCase().replaceAll("_", " ")}: takes ${column.occupied} scored${later > 0 ? `, of which ${later} stand in a later column, that of their deadline` : ""}; `
        + `${column.reserved} under way, ${column.free < 0 ? "any number" : column.free} may start`));
}

function place(group, open) {
  return make("button", {
    class: `place ${isQueued(group) ? "queued" : group.state} ${group.is_blocker ? "blocker" : ""}`, onclick: () => open(group.id),
    title: `group ${group.id}: ${group.state}, began at v${group.version}, ${group.finished} of ${group.size} responses done, ${group.tokens} tokens`
      + (group.queued ? `, ${group.queued} queued` : "") + (group.is_blocker ? "; due now" : ""),
  }, make("i", { style: { height: `${Math.round(100 * group.done)}%` } }), make("b", {}, String(group.id % 10000)));
}
