// Metrics: every number of metrics.jsonl, by prefix, over steps, time or tokens.
import { make, card, short } from "./dom.js";

export const isMoving = false, isOfMoment = false;
const AXES = { step: "step", time_s: "seconds", "tokens/trained": "trained tokens" };

export async function render({ ask, go, here }) {
  const { steps, evaluations } = await ask("metrics");
  if (!Object.keys(steps).length) return [card("Metrics", make("p", { class: "dim" }, "No train step is finished yet."))];
  const axes = Object.keys(AXES).filter((key) => key in steps);
  const axis = axes.includes(here.words.axis) ? here.words.axis : "step";
  const smooth = Number(here.words.smooth ?? 1);
  const wanted = (here.words.find ?? "").toLowerCase();
  const keys = Object.keys(steps).filter((key) => key !== axis && key !== "step" && key.toLowerCase().includes(wanted));
  const groups = Map.groupBy ? Map.groupBy(keys, prefix) : grouped(keys);
  const find = make("input", { type: "search", placeholder: "part of a name", value: here.words.find ?? "", onchange: (event) => go({ find: event.target.value || null }) });
  const choose = (name, values, now) => make("select", { onchange: (event) => go({ [name]: event.target.value }) },
    values.map(([value, words]) => make("option", { value, selected: String(value) === String(now) }, words)));
  const cards = [...groups].map(([name, members]) => card(name, make("div", { class: "plots" }, members.map((key) => placed(key, steps, axis, smooth)))));
  return [card(null, make("div", { class: "row" }, find, "over ", choose("axis", axes.map((key) => [key, AXES[key]]), axis), "smoothed over ",
    choose("smooth", [[1, "nothing"], [5, "5 steps"], [20, "20 steps"]], smooth))), ...evaluated(evaluations), ...cards];
}

const prefix = (key) => (key.includes("/") ? key.split("/")[0] : "run");

function grouped(keys) {
  const found = new Map();
  for (const key of keys) found.set(prefix(key), [...(found.get(prefix(key)) ?? []), key]);
  return found;
}

function evaluated(evaluations) {
  const keys = Object.keys(evaluations).filter((key) => !["policy_version", "step"].includes(key)).slice(0, 12);
  if (!keys.length || !evaluations.policy_version) return [];
  return [card("evaluations", make("div", { class: "plots" }, keys.map((key) => placed(key, evaluations, "policy_version", 1))))];
}

/** A place for a curve, which is drawn when it comes into sight. */
function placed(key, columns, axis, smooth) {
  const under = make("output", {});
  const place = make("div", { class: "plot" }, make("h3", {}, key, under));
  const watcher = new IntersectionObserver((seen) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    watcher.disconnect();
    plot(place, under, key, columns, axis, smooth);
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

/** What a colour of the theme is, for a canvas. */
export function colour(name, place) {
  const probe = make("span", { style: { color: `var(${name})` } });
  place.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function plot(place, under, key, columns, axis, smooth) {
  const [accent, dim, line] = ["--accent", "--dim", "--line"].map((name) => colour(name, place));
  const values = smoothed(columns[key], smooth);
  const axes = { stroke: dim, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, values: (self, splits) => splits.map(short) };
  const show = (self) => {
    const at = self.cursor.idx;
    under.textContent = at === null || at === undefined ? short(values.findLast((one) => one !== null)) : `${short(columns[axis][at])}: ${short(values[at])}`;
  };
  new uPlot({
    width: Math.max(260, place.clientWidth), height: 170, legend: { show: false },
    scales: { x: { time: false, range: padded(0) }, y: { range: padded(0.1) } }, axes: [{ ...axes }, { ...axes, size: 66 }],
    series: [{}, { stroke: accent, width: 1.5, points: { show: values.length < 30 } }], hooks: { setCursor: [show], ready: [show] },
  }, [columns[axis], values], place);
}

/** Room around what is there; a constant gets some too, and nothing at all still has a scale. */
export const padded = (share) => (self, least, most) => {
  if (least === null || most === null || !Number.isFinite(least) || !Number.isFinite(most)) return [0, 1];
  const room = most > least ? share * (most - least) : Math.abs(most) * 0.5 || 1;
  return [least - room, most + room];
};
