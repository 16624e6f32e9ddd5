// Metrics: every number of metrics.jsonl, by prefix, over steps, time or tokens; and staleness as a map of heat.
import { make, card, colour, short, painted } from "./dom.js";
import { heats, renew } from "./heat.js";
import { isSupervised } from "./now.js";

export const isMoving = false, isOfMoment = false, isOfSteps = true;
const MOST_DECADES = 6, MOST_EVALUATED = 60;
const OF_OTHERS = ["policy_version", "time_s"]; // of an evaluation the seconds that it took, of a step those since the run began
const LINES = "lines per point"; // a column that only an answer has of which older lines are drawn together
export const AXES = { step: "step", time_s: "seconds", "tokens/trained": "trained tokens" };
const UNITS = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"]];
let standing = { curves: new Map(), heat: null }; // what is in the page, and goes on there when a step is added

export async function render({ ask, go, here, isAgain, isHeld }) {
  const { steps, evaluations } = await ask("metrics");
  if (isAgain && isHeld()) return null; // taken in hand meanwhile: the curves stay where they are
  if (!isAgain) standing = { curves: new Map(), heat: null };
  if (!Object.keys(steps).length) return [card("Metrics", make("p", { class: "dim" }, "No train step is finished yet."))];
  const axes = Object.keys(AXES).filter((key) => key in steps);
  const axis = axes.includes(here.words.axis) ? here.words.axis : "step";
  const smooth = Number(here.words.smooth ?? 1), isLog = here.words.scale === "log";
  const wanted = (here.words.find ?? "").toLowerCase();
  const keys = Object.keys(steps).filter((key) => key !== axis && key !== "step" && key !== LINES && key.toLowerCase().includes(wanted));
  const groups = Map.groupBy ? Map.groupBy(keys, prefix) : grouped(keys);
  const find = make("input", { type: "search", "aria-label": "part of a metric's name", placeholder: "part of a name", value: here.words.find ?? "", onchange: (event) => go({ find: event.target.value || null }) });
  const choose = (name, label, values, now) => make("select", { "aria-label": label, onchange: (event) => go({ [name]: event.target.value }) },
    values.map(([value, words]) => make("option", { value, selected: String(value) === String(now) }, words)));
  const cards = [...groups].map(([name, members]) => card(name, make("div", { class: "plots" }, members.map((key) => placed(key, steps, axis, { smooth, isLog, laid: laidOver(key, steps, evaluations) })))));
  return [card(null, make("div", { class: "row" }, find, "over ", choose("axis", "axis", axes.map((key) => [key, AXES[key]]), axis), "smoothed over ",
    choose("smooth", "smoothing", [[1, "nothing"], [5, "5 steps"], [20, "20 steps"]], smooth), "scale ", choose("scale", "scale", [["linear", "linear"], ["log", "logarithmic"]], isLog ? "log" : "linear")), ...thinned(steps)),
    ...(!isSupervised(here) && ("staleness".includes(wanted) || wanted.includes("staleness")) ? [card("staleness of what was trained, over steps", heat(ask, isLog))] : []),
    ...evaluated(evaluations, isLog, wanted), ...cards];
}

/** In words, up to which step points stand for several steps; nothing if none does. */
export function thinned(steps) {
  const held = steps[LINES], last = held ? held.findLastIndex((lines) => lines > 1) : -1;
  if (last < 0) return [];
  return [make("p", { class: "dim thinned" }, `Up to step ${steps.step[last]} a curve has the least and the most of every ${2 * held[last]} steps, up to so many steps from where they were, and is smoothed over these points; each later step is a point of its own. metrics.jsonl has every step.`)];
}

/** What evaluations say under the same name, at the steps whose version they are of, or the next that is drawn; null if they say nothing. */
function laidOver(key, steps, evaluations) {
  if (OF_OTHERS.includes(key) || !Object.hasOwn(evaluations, key) || !evaluations[key].some((one) => one !== null) || !evaluations.policy_version) return null;
  const said = new Map(evaluations.policy_version.map((version, place) => [version, evaluations[key][place]]));
  if (!steps[LINES]) return steps.step.map((step) => said.get(step) ?? null);
  const laid = steps.step.map(() => null);
  for (const [version, value] of said) {
    const place = steps.step.findIndex((step) => step >= version);
    if (place > 0 || steps.step[place] === version) laid[place] = value ?? laid[place];
  }
  return laid;
}

const prefix = (key) => (key.includes("/") ? key.split("/")[0] : "run");

function grouped(keys) {
  const found = new Map();
  for (const key of keys) found.set(prefix(key), [...(found.get(prefix(key)) ?? []), key]);
  return found;
}

function evaluated(evaluations, isLog, wanted) {
  const keys = Object.keys(evaluations).filter((key) => !["policy_version", "step"].includes(key) && key.toLowerCase().includes(wanted));
  if (!keys.length || !evaluations.policy_version) return [];
  const rest = keys.length > MOST_EVALUATED ? make("p", { class: "dim" }, `${MOST_EVALUATED} of ${short(keys.length)}: narrow them with the field above.`) : null;
  return [card("evaluations", rest, make("div", { class: "plots" }, keys.slice(0, MOST_EVALUATED).map((key) => placed(key, evaluations, "policy_version", { smooth: 1, isLog, laid: null }))))];
}

/** The maps of staleness: those that are there, with what is new, or new ones. */
function heat(ask, isLog) {
  if (standing.heat === null) standing.heat = heats(ask, isLog);
  else renew(standing.heat, ask, isLog);
  return standing.heat;
}

/** A place for a curve, which is drawn when it comes into sight; one that stands in the page goes on with what is new. */
function placed(key, columns, axis, how) {
  const name = `${axis} ${key}`, before = standing.curves.get(name);
  if (before !== undefined && (before.told.how.laid === null) === (how.laid === null)) {
    Object.assign(before.told, { columns, how });
    before.told.redraw?.();
    return before.place;
  }
  const under = make("output", {});
  const place = make("div", { class: "plot" }, make("h3", {}, key, under));
  const told = { columns, how, chart: null, redraw: null };
  standing.curves.set(name, { place, told });
  const watcher = new IntersectionObserver((seen) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    watcher.disconnect();
    painted(place, () => plot(place, under, key, axis, told), () => told.chart?.destroy()); // uPlot keeps each chart that nobody destroys
  });
  watcher.observe(place);
  return place;
}

function smoothed(values, over) {
  if (over <= 1) return values;
  return values.map((value, place) => {
    const near = values.slice(Math.max(0, place - over + 1), place + 1).filter((one) => one !== null);
    return value === null || !near.length ? null : near.reduce((sum, one) => sum + one, 0) / near.length;
  });
}

/** Draw what is told, and again by `told.redraw()`, which leaves the pointer's place in it. */
function plot(place, under, key, axis, told) {
  const { isLog } = told.how;
  const [accent, dim, line, other] = ["--accent", "--dim", "--line", "--v1"].map((name) => colour(name, place));
  told.chart?.destroy();
  const drawn = (values) => (isLog ? values.map((one) => (one > 0 ? one : null)) : values);
  const data = () => [told.columns[axis], drawn(smoothed(told.columns[key], told.how.smooth)), ...(told.how.laid ? [drawn(told.how.laid)] : [])];
  const axes = { stroke: dim, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, values: ticks };
  const show = (self) => {
    const at = self.cursor.idx, { laid } = told.how, values = self.data[1], held = at !== null && at !== undefined ? laid?.[at] ?? null : null;
    under.textContent = at === null || at === undefined ? short(values.findLast((one) => one !== null)) + (laid ? ", ● held out" : "")
      : `${short(self.data[0][at])}: ${short(values[at])}${held === null ? "" : `, held out ${short(held)}`}`;
  };
  const chart = told.chart = new uPlot({
    width: Math.max(260, place.clientWidth), height: 170, legend: { show: false },
    scales: { x: { time: false, range: padded(0) }, y: isLog ? { distr: 3, range: decades } : { range: padded(0.1) } }, axes: [{ ...axes }, { ...axes, size: room }],
    series: [{}, { stroke: accent, width: 1.5, points: { show: (self) => self.data[0].length < 30 } }, ...(told.how.laid ? [{ stroke: other, width: 0, points: { show: true, size: 7, fill: other } }] : [])],
    hooks: { setCursor: [show], ready: [show] },
  }, data(), place);
  told.redraw = () => {
    withData(chart, data());
    show(chart);
  };
}

/** Show other data in a chart; a stretch that somebody has zoomed to stays as it is. */
export function withData(chart, data) {
  const { min, max } = chart.scales.x, there = chart.data[0].filter((one) => one !== null);
  const isWhole = !there.length || (min <= there[0] && max >= there.at(-1));
  chart.setData(data, isWhole);
  if (!isWhole) chart.setScale("x", { min, max });
}

/** From a power of ten to another, around what is there; what is far below the rest lies outside. */
const decades = (self, least, most) => {
  if (!(least > 0)) return [0.1, 1];
  const top = Math.ceil(Math.log10(most) + 1e-9);
  return [10 ** Math.max(Math.min(Math.floor(Math.log10(least)), top - 1), top - MOST_DECADES), 10 ** top];
};

/** Room around what is there; a constant gets some too, and nothing at all still has a scale. */
export const padded = (share) => (self, least, most) => {
  if (least === null || most === null || !Number.isFinite(least) || !Number.isFinite(most)) return [0, 1];
  const room = most > least ? share * (most - least) : Math.abs(most) * 0.5 || 1;
  return [least - room, most + room];
};

/** What the marks of an axis say: as short as it can be without saying another number. */
export function ticks(self, marks) {
  const numbers = marks.filter((one) => one !== null), size = Math.max(...numbers.map(Math.abs));
  const step = Math.min(size, ...numbers.slice(1).map((one, place) => Math.abs(one - numbers[place]) || size));
  let digits = 3;
  while (digits < 15 && numbers.some((one) => Math.abs(Number(one.toPrecision(digits)) - one) > step / 1000)) digits += 1;
  return marks.map((one) => (one === null ? "" : tick(one, digits)));
}

function tick(value, digits) {
  const [unit, name] = UNITS.find(([unit]) => Math.abs(value) >= unit) ?? [1, ""];
  const told = Number((value / unit).toPrecision(digits));
  if (name) return `${told} ${name}`;
  return told !== 0 && Math.abs(told) < 0.001 ? told.toExponential() : told.toLocaleString("en", { maximumSignificantDigits: digits });
}

/** Pixels beside a plot for the longest of its numbers, the ticks and a gap. */
export function room(self, words, place, round) {
  const axis = self.axes[place];
  self.ctx.font = axis.font[0];
  const widest = Math.max(0, ...(words ?? []).map((one) => self.ctx.measureText(one).width));
  const wanted = Math.ceil(axis.ticks.size + axis.gap + widest / devicePixelRatio) + 2;
  return round > 1 ? Math.max(axis._size, wanted) : wanted; // uPlot asks again with other marks: what only grows comes to an end
}
