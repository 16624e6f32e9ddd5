// Compare: up to eight runs on the same axes, their summaries, and the keys in which they differ.
import { make, card, table, colour, painted } from "./dom.js";
import { AXES, padded, room, thinned, ticks, withData } from "./metrics.js";
import { legendOf, still } from "./timeline.js";

export const isMoving = false, isOfMoment = false;
const FIRST = ["reward/mean", "staleness/mean", "throughput/tokens_per_s", "response_length/mean", "idle/trainer", "idle/rollout", "loss", "grad_norm"];
const MOST = 8;
const BETWEEN = "\n"; // metrics in the address: no name has it
const AGAIN_MS = 1000; // until the next look at timelines, while histories are being read
const FOLLOW_MS = 3000; // between two looks for new steps of the runs that go on

export async function render(tools) {
  const { here, fetchHere } = tools;
  if (here.runs.length < 2) return [card("Compare", make("p", { class: "dim" }, "There is one run here. Start the view with several: launch.py view RUN RUN ..."))];
  const wanted = (here.words.runs ?? here.runs.map((run, place) => place).slice(0, MOST).join(",")).split(",").filter(Boolean).map(Number).filter((place) => place in here.runs).slice(0, MOST);
  const columns = await Promise.all(wanted.map(async (place) => ({ place, run: here.runs[place], ...(await read(place, fetchHere)) })));
  const whole = make("div", { style: { display: "contents" } });
  follow(whole, columns, tools, show(whole, columns, tools));
  return [whole];
}

/** The train steps of a run as columns, or why there are none. */
async function read(place, fetchHere) {
  const answer = await fetchHere(`/api/runs/${place}/metrics`);
  const found = await answer.json();
  return { steps: answer.ok ? found.steps : {}, trouble: found.error };
}

const keysOf = (columns) => [...new Set(columns.flatMap((one) => Object.keys(one.steps)))].filter((key) => key !== "step" && key !== "time_s" && key !== "lines per point");

/** Fill the page; returns what brings new steps into it and leaves the rest alone. */
function show(whole, columns, tools) {
  const { go, here, fetchHere } = tools;
  const wanted = columns.map((one) => one.place), keys = keysOf(columns);
  const chosen = (here.words.keys?.split(BETWEEN).flatMap((one) => (keys.includes(one) ? [one] : one.split(" "))) ?? FIRST.filter((key) => keys.includes(key)).slice(0, 6)).filter((key) => keys.includes(key));
  const axis = here.words.axis in AXES ? here.words.axis : "step";
  const chooser = card(null, make("div", { class: "row" }, here.runs.map((run, place) => toggle(run, place, wanted, go)),
    "over ", make("select", { "aria-label": "axis", onchange: (event) => go({ axis: event.target.value }) }, Object.entries(AXES).map(([value, words]) => make("option", { value, selected: value === axis }, words))),
    make("select", { "aria-label": "add a metric", onchange: (event) => go({ keys: [...chosen, event.target.value].join(BETWEEN) }) }, make("option", { value: "" }, "add a metric"), keys.filter((key) => !chosen.includes(key)).map((key) => make("option", { value: key }, key)))),
    make("div", { class: "legend" }, columns.map((one, number) => make("span", {}, make("i", { style: { background: `var(--v${number % 6})` } }), one.run.name, one.trouble ? `: ${one.trouble}` : ""))));
  if (!columns.length) {
    whole.replaceChildren(chooser, card("Metrics", make("p", { class: "dim" }, "No run is chosen: click those to be compared.")));
    return () => {};
  }
  const thin = () => make("div", {}, columns.flatMap((one) => thinned(one.steps).map((words) => make("div", { class: "dim" }, `${one.run.name}: `, words.textContent))));
  const last = () => lastValues(columns, ["step", "time_s", ...chosen]);
  const curves = chosen.map((key) => placed(key, axis, columns, () => go({ keys: chosen.filter((one) => one !== key).join(BETWEEN) })));
  let notes = thin(), values = last();
  whole.replaceChildren(chooser, card("Metrics", notes, make("div", { class: "plots" }, curves.map((one) => one.place))), values, differences(columns),
    here.words.lanes ? timelines(columns.map((one) => one.run), wanted, fetchHere)
      : card("Timelines", make("p", { class: "dim" }, "For them the whole history of each run is read. ", make("button", { onclick: () => go({ lanes: 1 }) }, "show them"))));
  return () => {
    if (keysOf(columns).length !== keys.length) return show(whole, columns, tools); // the first step, or the first of a metric
    for (const one of curves) one.redraw();
    notes.replaceWith(notes = thin());
    values.replaceWith(values = last());
    return null;
  };
}

/** Look for new steps of the runs that go on, as long as the page is there. */
function follow(whole, columns, tools, renew) {
  const { here, fetchHere } = tools;
  const isLive = (one) => here.runs[one.place]?.state === "live";
  let before = columns.filter(isLive);
  const look = async () => {
    if (!whole.isConnected) return;
    const live = columns.filter(isLive), asked = document.hidden || !getSelection().isCollapsed ? [] : [...new Set([...before, ...live])];
    const news = await Promise.all(asked.map(async (one) => {
      const found = await read(one.place, fetchHere).catch(() => null); // a view that is gone is said above
      if (found === null || found.trouble || found.steps.step?.at(-1) === one.steps.step?.at(-1)) return false;
      Object.assign(one, found);
      return true;
    }));
    if (asked.length) before = live; // so that a run's last steps come, too
    if (whole.isConnected && news.some(Boolean)) renew = renew() ?? renew;
    setTimeout(look, FOLLOW_MS);
  };
  setTimeout(look, FOLLOW_MS);
}

/** Of each run, and how far they are from those of the first. */
function lastValues(columns, keys) {
  const last = (one, key) => (Object.hasOwn(one.steps, key) ? one.steps[key] : []).findLast((value) => value !== null) ?? "";
  const apart = (value, base) => (value === "" || base === "" || !base ? "" : `${value >= base ? "+" : "−"}${((100 * Math.abs(value - base)) / Math.abs(base)).toFixed(1)} %`);
  return card("Last values", table(["", ...columns.flatMap((one, number) => (number ? [one.run.name, `to ${columns[0].run.name}`] : [one.run.name]))],
    keys.map((key) => [key, ...columns.flatMap((one, number) => (number ? [last(one, key), apart(last(one, key), last(columns[0], key))] : [last(one, key)]))])));
}

/** Under one another, on the same seconds. */
function timelines(runs, places, fetchHere) {
  const place = card("Timelines", make("p", { class: "dim", role: "status" }, "reading the histories …"));
  const until_s = Math.max(1, ...runs.map((run) => run.until_s ?? 0));
  const words = new URLSearchParams({ begin: 0, end: until_s, find: "trainer rollout" });
  const look = async () => {
    const found = await Promise.all(places.map(async (run) => (await fetchHere(`/api/runs/${run}/timeline?${words}`)).json().catch(() => ({ error: "The view does not answer." }))));
    const drawn = found.filter((one) => !one.error);
    place.replaceChildren(make("h2", {}, "Timelines"), ...found.flatMap((one, number) => [make("h3", {}, runs[number].name), one.error ? make("p", { class: "bad" }, one.error) : still(one)]),
      ...(drawn.length ? [legendOf(drawn)] : []));
    if (drawn.some((one) => !one.trouble && one.passed < one.of)) setTimeout(() => { if (place.isConnected) look(); }, AGAIN_MS);
  };
  look();
  return place;
}

function toggle(run, place, wanted, go) {
  const isOn = wanted.includes(place);
  const next = isOn ? wanted.filter((one) => one !== place) : [...wanted, place].sort((a, b) => a - b);
  const isOneMore = !isOn && wanted.length >= MOST; // which would take the place of another one, or have none
  return make("button", { class: isOn ? "on" : "", "aria-pressed": String(isOn), disabled: isOneMore, title: isOneMore ? `${MOST} runs are compared at most: leave one out first` : null, onclick: () => go({ runs: next.join(",") }) }, run.name);
}

/** Keys of the configuration that are not the same in all of them. */
function differences(columns) {
  const flat = columns.map((one) => Object.fromEntries(flattened(one.run.config ?? {})));
  const keys = [...new Set(flat.flatMap((one) => Object.keys(one)))].filter((key) => new Set(flat.map((one) => JSON.stringify(one[key]))).size > 1);
  return card("Settings that differ", keys.length ? table(["", ...columns.map((one) => one.run.name)], keys.map((key) => [key, ...flat.map((one) => (one[key] === undefined ? "" : String(JSON.stringify(one[key]))))]))
    : make("p", { class: "dim" }, "None."));
}

function flattened(tree, prefix = "") {
  return Object.entries(tree).flatMap(([key, value]) => (value !== null && typeof value === "object" && !Array.isArray(value) ? flattened(value, `${prefix}${key}.`) : [[prefix + key, value]]));
}

/** A place for a metric's curves, and what draws them again with the columns as they are now. */
function placed(key, axis, columns, remove) {
  const place = make("div", { class: "plot" }, make("h3", {}, key, make("button", { title: `leave ${key} out`, "aria-label": `leave ${key} out`, onclick: remove }, "×")));
  let chart = null;
  const paint = () => { chart?.destroy(); chart = plot(place, key, axis, columns); };
  const redraw = () => {
    if (chart === null) return;
    const { there, data } = aligned(key, axis, columns);
    if (there.length + 1 === chart.series.length) withData(chart, data);
    else paint(); // another run has this metric now
  };
  const watcher = new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) { watcher.disconnect(); painted(place, paint, () => chart?.destroy()); } });
  watcher.observe(place);
  return { place, redraw };
}

/** The runs that have this metric, and their points on one axis. */
function aligned(key, axis, columns) {
  const there = columns.map((one, number) => ({ number, x: one.steps[axis], y: Object.hasOwn(one.steps, key) ? one.steps[key] : null })).filter((one) => one.x && one.y);
  const points = [...new Set(there.flatMap((one) => one.x.filter((value) => value !== null)))].sort((a, b) => a - b);
  const curves = there.map((one) => { const by = new Map(one.x.map((value, at) => [value, one.y[at]])); return points.map((value) => by.get(value) ?? undefined); });
  return { there, data: [points, ...curves] };
}

function plot(place, key, axis, columns) {
  const { there, data } = aligned(key, axis, columns);
  const [dim, line] = ["--dim", "--line"].map((name) => colour(name, place));
  const axes = { stroke: dim, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, values: ticks };
  return new uPlot({
    width: Math.max(260, place.clientWidth), height: 190, legend: { show: false },
    scales: { x: { time: false, range: padded(0) }, y: { range: padded(0.1) } }, axes: [{ ...axes }, { ...axes, size: room }],
    series: [{}, ...there.map((one) => ({ stroke: colour(`--v${one.number % 6}`, place), width: 1.5, spanGaps: true, dash: one.number >= 6 ? [4, 3] : undefined, points: { show: (self) => self.data[0].length < 30 } }))],
  }, data, place);
}
