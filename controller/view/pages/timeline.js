// Timeline: what each worker did, and when. One canvas; drag to move, wheel or + and - to zoom, click a lane to go there and see what that worker has in hand.
import { make, card, table, short, duration, painted } from "./dom.js";

export const isMoving = true, isOfMoment = true;
const LEFT = 118, ROW = 17, TOP = 22, GAP = 6, BAND = 56;
const COLOURS = { generating: "--accent", pulling: "--ink", training: "--good", scoring: "--v4", encoding: "--v3", episodes: "--v5",
  starting: "--v1", gone: "--bad", paused: "--dim", "idle: bound": "--bad", "idle: cap": "--warn", "idle: data": "--v4", "idle: weights": "--v3", "idle: routing": "--v5", "idle: nothing to do": "--dim",
  "waits: rollout": "--accent", "waits: scoring": "--v5", "waits: weights": "--v3", "waits: data": "--v4", "waits: environments": "--v1", "waits: start-up": "--dim" };
const BESIDE = { prefill: ["--warn", "prefill: no token yet since it got work or weights"], publishing: ["--v3", "publishing"], saving: ["--v5", "saving a checkpoint"], ahead: ["--accent", "training ahead of the batch"] };
const FILTERS = "A name or a part of it (rollout-1, reward*), a share of what is shown (idle>20%, idle:bound>5%, pulling<1%), slowest 10, every 16";
const shareOf = (seconds, all) => `${((100 * seconds) / Math.max(all, 1e-9)).toFixed(1)} %`;

let isBehind = false;
export const isWaiting = () => isBehind;

export async function render({ ask, go, here }) {
  const { found, refused } = await spanned(ask, here.words);
  isBehind = !found.trouble && found.passed < found.of;
  const find = make("input", { type: "search", size: 30, maxlength: 200, placeholder: "rollout-1*  idle>20%  slowest 10", value: here.words.find ?? "", "aria-label": "filter of workers", title: FILTERS, onchange: (event) => go({ find: event.target.value || null }) });
  const seen = { begin: found.begin_s, end: found.end_s }; // what is drawn now: the next zoom begins there, whether or not its answer has come
  const move = (begin, end) => {
    seen.begin = Math.max(0, Math.min(begin, found.until_s - 0.01));
    seen.end = Math.max(seen.begin + 0.01, Math.min(end, found.until_s));
    place.show(seen.begin, seen.end);
    go({ begin: seen.begin.toFixed(3), end: seen.end.toFixed(3) });
  };
  const zoom = (factor, at = (seen.begin + seen.end) / 2) => move(at - (at - seen.begin) * factor, at + (seen.end - at) * factor);
  const slide = (seconds) => { const width = seen.end - seen.begin, begin = Math.max(0, Math.min(seen.begin + seconds, found.until_s - width)); move(begin, begin + width); };
  const shift = (share) => slide(share * (seen.end - seen.begin));
  const readout = make("output", { class: "dim" }, "Point at a span. Drag to move, ctrl or shift and the wheel to zoom, click to go to a moment.");
  const place = canvas(found, { seen, zoom, slide, shift, readout, open: (second, who) => openMoment(ask, go, second, who) });
  return [
    card(null, make("div", { class: "row" }, ...(window.inFile ? [] : [find,
      make("button", { onclick: () => zoom(0.5), "aria-label": "zoom in" }, "+"), make("button", { onclick: () => zoom(2), "aria-label": "zoom out" }, "−"),
      make("button", { onclick: () => shift(-0.5), "aria-label": "earlier" }, "⟵"), make("button", { onclick: () => shift(0.5), "aria-label": "later" }, "⟶"),
      make("button", { onclick: () => go({ begin: null, end: null }) }, "whole run")]),
      ...[refused, found.refused].filter(Boolean).map((said) => make("span", { class: "bad", role: "alert" }, said)),
      make("span", {}, `${duration(found.begin_s)} to ${duration(found.end_s)}, ${found.count} workers`), progress(found)),
      place.element, readout,
      legendOf([found])),
    make("div", { class: "grid" }, Object.entries(found.shares).map(([role, shares]) => {
      const all = Object.values(shares).reduce((sum, one) => sum + one, 0);
      return card(`Time of ${role}, in what is shown`, table(["state", "seconds", "share"], Object.entries(shares).sort((a, b) => b[1] - a[1]).map(([kind, seconds]) => [kind, Number(seconds.toFixed(3)), shareOf(seconds, all)])));
    })),
  ];
}

/** The lanes of the span that the address asks for; of the whole run, and why, if that is none of it. */
async function spanned(ask, { begin, end, find = "" }) {
  const look = (span) => ask("timeline", { ...span, find }, { atMoment: false });
  const isSpan = [begin ?? 0, end ?? Infinity].every((second) => Number(second) >= 0) && Number(end ?? Infinity) > Number(begin ?? 0);
  const found = isSpan ? await look({ ...(begin ? { begin } : {}), ...(end ? { end } : {}) }) : await look({});
  if (isSpan && (!begin || Number(begin) < found.until_s)) return { found, refused: "" };
  const whole = isSpan ? await look({}) : found;
  return { found: whole, refused: `From ${begin || 0} to ${end || "the end"} is no span of this run, which has the seconds 0 to ${whole.until_s.toFixed(1)}; all of it is shown.` };
}

function progress(found) {
  if (found.trouble) return make("span", { class: "bad" }, found.trouble);
  return found.passed < found.of ? make("span", { class: "warn", role: "status" }, `reading the history: ${short(found.passed)} of ${short(found.of)} events, as far as ${duration(found.known_s)}`) : null;
}

/** The run at that second, and what the worker whose lane was clicked had in hand. */
async function openMoment(ask, go, second, who) {
  const from = location.hash, isPatient = () => location.hash === from;
  const moment = await ask("moment", { second }, { atMoment: false, isPatient }).catch(() => null);
  if (moment !== null && isPatient()) go({ page: "now", at: moment.number, who });
}

const isIdle = (kind) => kind.startsWith("idle") || kind.startsWith("waits");
const colourName = (kind) => COLOURS[kind] ?? (isIdle(kind) ? "--warn" : "--dim");
const used = (found) => found.kinds.filter((kind) => Object.values(found.shares).some((shares) => kind in shares));

const MOST_STILL = 8; // lanes

/** The same as a picture: the first lanes, or bands of a fleet. */
export function still(found) {
  const lanes = found.fleet ? [] : found.lanes.slice(0, MOST_STILL), left = found.count - lanes.length;
  return make("div", {}, canvas({ ...found, lanes }, null).element, progress(found),
    left && !found.fleet ? make("p", { class: "dim" }, `and ${short(left)} more workers`) : null);
}

const doneBeside = (found) => besideOf(found, found.lanes.flatMap((lane) => lane.beside ?? []).reduce((all, bits) => all | bits, 0));

/** Which colour is what, of states that any of these has. */
export const legendOf = (all) => make("div", { class: "legend" }, [...new Set(all.flatMap(used))].map((kind) => make("span", {}, make("i", { style: { background: `var(${colourName(kind)})`, opacity: isIdle(kind) ? 0.55 : 1 } }), kind)),
  [...new Set(all.flatMap(doneBeside))].map((what) => make("span", {}, make("i", { style: { background: `var(${BESIDE[what][0]})`, height: "3px" } }), BESIDE[what][1])),
  make("span", {}, [all.some((one) => one.lanes.some((lane) => lane.spans)) ? "generating is coloured by policy version, and as dark as its places are taken" : "",
    all.some((one) => one.lanes.some((lane) => lane.bins)) ? "in one colour in lanes with too many spans, as dark as its share of the time (zoom in for more)" : "",
    all.some((one) => one.fleet) ? "in one colour where a role is drawn as a band" : ""].filter(Boolean).join("; ")));

/** A canvas, and `show(begin, end)`: what is known is drawn there at once, until the answer for those seconds comes. */
function canvas(found, acts) {
  const bands = found.fleet ? Object.keys(found.fleet) : [];
  const height = TOP + bands.length * (BAND + GAP) + found.lanes.length * ROW + 4;
  const view = make("canvas", { class: "timeline", tabindex: 0, role: "img", "aria-label": `Timeline of ${found.count} workers; shares are in the tables below` });
  const place = make("div", { class: "wide" }, view);
  let colours = null, wide = 0;
  const paint = () => { wide = Math.max(400, place.clientWidth); colours = palette(place); scale(view, wide, height); draw(view.getContext("2d"), wide, found, colours, acts?.seen.begin ?? found.begin_s, acts?.seen.end ?? found.end_s); };
  const show = (begin, end) => { if (colours !== null && end > begin) requestAnimationFrame(() => draw(view.getContext("2d"), wide, found, colours, begin, end)); };
  painted(place, paint);
  if (acts !== null) listen(view, found, { ...acts, show }, bands);
  return { element: place, show };
}

function scale(view, width, height) {
  const ratio = window.devicePixelRatio || 1;
  view.width = Math.round(width * ratio);
  view.height = Math.round(height * ratio);
  view.style.setProperty("width", `${width}px`);
  view.style.setProperty("height", `${height}px`);
  view.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
}

/** The colours of this theme, as a canvas wants them. */
function palette(place) {
  const probe = make("span", {});
  place.append(probe);
  const found = (name) => { probe.style.setProperty("color", `var(${name})`); return getComputedStyle(probe).color; };
  const names = ["--ink", "--dim", "--line", "--bad", "--accent", "--good", "--warn", "--v0", "--v1", "--v2", "--v3", "--v4", "--v5"];
  const colours = Object.fromEntries(names.map((name) => [name, found(name)]));
  probe.remove();
  return colours;
}

/** The second at which bins end: the run is known no further, or the span ends. */
const binsEnd = (found) => Math.min(found.end_s, found.known_s);

/** What a lane of bins did most at a second. */
function kindAt(found, { bins }, second) {
  const share = (second - found.begin_s) / (binsEnd(found) - found.begin_s);
  return (share <= 1 ? found.kinds[bins[Math.min(bins.length - 1, Math.floor(share * bins.length))]] : undefined) ?? "not there";
}

/** The lanes from `begin` to `end`, out of what was found of other seconds, perhaps. */
function draw(pen, width, found, colours, begin, end) {
  const room = width - LEFT - 4, x = (second) => LEFT + ((second - begin) / (end - begin)) * room;
  pen.clearRect(0, 0, width, pen.canvas.height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.globalAlpha = 1;
  names(pen, found, colours);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, room + 4, pen.canvas.height);
  pen.clip();
  axis(pen, x, found, colours, { width, begin, end });
  const edges = (count) => (place) => x(found.begin_s + (place / count) * (binsEnd(found) - found.begin_s));
  let y = TOP;
  for (const rows of Object.values(found.fleet ?? {})) {
    band(pen, rows, y, edges(rows.length), found, colours);
    y += BAND + GAP;
  }
  for (const lane of found.lanes) {
    if (lane.bins) bins(pen, lane, y, edges(lane.bins.length), found, colours);
    else lane.spans.forEach(([from, to, kind, detail], place) => { if (to > begin && from < end) bar(pen, x(from), Math.max(0.7, x(to) - x(from)), y, found.kinds[kind], detail, shade(lane.loads[place]), colours); });
    if (lane.spans) lane.spans.forEach(([from, to], place) => { if (lane.beside[place] && to > begin && from < end) stripes(pen, x(from), Math.max(0.7, x(to) - x(from)), y, besideOf(found, lane.beside[place]), colours); });
    y += ROW;
  }
  pen.restore();
}

/** What is done beside a state, out of its bits. */
const besideOf = (found, bits) => found.beside.filter((_, bit) => bits & (1 << bit));

/** A thin line for each, at the lower edge of the bar. */
function stripes(pen, left, wide, y, doing, colours) {
  pen.globalAlpha = 1;
  doing.forEach((what, place) => { pen.fillStyle = colours[BESIDE[what][0]]; pen.fillRect(left, y + ROW - 4 - 3 * place, wide, 2); });
}

/** Generating is as dark as its places are taken. */
const shade = (load) => (load === null ? 1 : 0.35 + 0.65 * load);

function names(pen, found, colours) {
  const bands = Object.keys(found.fleet ?? {});
  pen.fillStyle = colours["--ink"];
  bands.forEach((role, place) => pen.fillText(`all ${role}`, 2, TOP + place * (BAND + GAP) + BAND / 2));
  found.lanes.forEach(({ name }, place) => pen.fillText(name.length > 18 ? `${name.slice(0, 17)}…` : name, 2, TOP + bands.length * (BAND + GAP) + (place + 0.5) * ROW));
}

function bar(pen, left, wide, y, kind, detail, fullness, colours) {
  pen.globalAlpha = (isIdle(kind) ? 0.55 : kind === "gone" ? 0.5 : 1) * fullness;
  pen.fillStyle = kind === "generating" && detail >= 0 ? colours[`--v${detail % 6}`] : colours[colourName(kind)];
  const thin = isIdle(kind) || kind === "gone";
  pen.fillRect(left, y + (thin ? ROW / 2 - 2 : 2), wide, thin ? 4 : ROW - 4);
}

function bins(pen, lane, y, edge, found, colours) {
  const wide = edge(1) - edge(0);
  lane.bins.forEach((kind, place) => { if (kind >= 0) bar(pen, edge(place), wide + 0.5, y, found.kinds[kind], -1, Math.max(0.25, lane.fullness[place]), colours); });
}

/** All workers of a role: how many are in each state. */
function band(pen, rows, y, edge, found, colours) {
  const wide = edge(1) - edge(0);
  const most = Math.max(1e-9, ...rows.map((row) => row.reduce((sum, one) => sum + one, 0)));
  rows.forEach((row, place) => {
    let bottom = y + BAND;
    row.forEach((count, kind) => {
      if (!count) return;
      const high = (count / most) * BAND;
      pen.globalAlpha = isIdle(found.kinds[kind]) ? 0.55 : 1;
      pen.fillStyle = colours[colourName(found.kinds[kind])];
      pen.fillRect(edge(place), bottom - high, wide + 0.5, high);
      bottom -= high;
    });
  });
}

function axis(pen, x, found, colours, { width, begin, end }) {
  const step = niceStep((end - begin) / Math.max(2, Math.floor((width - LEFT) / 110)));
  pen.strokeStyle = colours["--line"];
  pen.fillStyle = colours["--dim"];
  for (let second = Math.ceil(Math.max(0, begin) / step) * step; second <= end; second += step) {
    line(pen, x(second));
    const words = step < 1 ? `${second.toFixed(step < 0.01 ? 3 : 2)} s` : duration(second);
    if (x(second) + pen.measureText(words).width < width) pen.fillText(words, x(second) + 3, 7);
  }
  pen.strokeStyle = colours["--v3"];
  pen.globalAlpha = 0.5;
  if (found.versions.length < 200) found.versions.forEach(([second]) => line(pen, x(second), 14));
  pen.globalAlpha = 1;
}

function line(pen, at, from = 0) {
  pen.beginPath();
  pen.moveTo(at + 0.5, from);
  pen.lineTo(at + 0.5, pen.canvas.height);
  pen.stroke();
}

function niceStep(least) {
  const size = 10 ** Math.floor(Math.log10(Math.max(least, 1e-4)));
  return size * ([1, 2, 5].find((one) => one * size >= least) ?? 10);
}

function listen(view, found, { seen, zoom, slide, shift, readout, open, show }, bands) {
  const span = () => seen.end - seen.begin;
  const second = (event) => { const box = view.getBoundingClientRect(); return seen.begin + (Math.max(0, event.clientX - box.left - LEFT) / (box.width - LEFT - 4)) * span(); };
  const laneAt = (event) => { const y = event.clientY - view.getBoundingClientRect().top - TOP - bands.length * (BAND + GAP); return y < 0 ? undefined : found.lanes[Math.floor(y / ROW)]; };
  let pressed = null;
  view.addEventListener("wheel", (event) => { if (!event.ctrlKey && !event.shiftKey) return; event.preventDefault(); zoom((event.deltaY || event.deltaX) > 0 ? 1.5 : 1 / 1.5, second(event)); }, { passive: false });
  view.addEventListener("pointerdown", (event) => {
    if (event.button || event.ctrlKey) return; // on macOS ctrl and a click ask for the menu
    pressed = { x: event.clientX, at: second(event) };
    view.setPointerCapture(event.pointerId);
  });
  view.addEventListener("pointerup", (event) => {
    if (pressed === null) return;
    const gone = second(event) - pressed.at, isClick = Math.abs(event.clientX - pressed.x) < 4;
    if (isClick) open(pressed.at, laneAt(event)?.name); else slide(-gone);
    pressed = null;
  });
  view.addEventListener("pointermove", (event) => {
    const gone = pressed === null ? 0 : second(event) - pressed.at;
    if (gone && Math.abs(event.clientX - pressed.x) >= 4) show(seen.begin - gone, seen.end - gone);
    readout.textContent = at(found, second(event), event.clientY - view.getBoundingClientRect().top - TOP - bands.length * (BAND + GAP));
  });
  view.addEventListener("keydown", (event) => {
    const act = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), a: () => shift(-0.5), d: () => shift(0.5) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
}

/** What is under the pointer, in words. */
function at(found, second, y) {
  const lane = found.lanes[Math.floor(y / ROW)];
  const when = `${second.toFixed(3)} s`;
  if (y < 0 || lane === undefined) return when;
  const speed = lane.speed === null ? "" : `; ${short(lane.speed)} tokens in a second of generating`;
  if (lane.bins) return `${when}: ${lane.name} mostly ${kindAt(found, lane, second)} (zoom in for more)${speed}`;
  const hit = lane.spans.find(([begin, end]) => begin <= second && second < end);
  const load = hit === undefined ? null : lane.loads[lane.spans.indexOf(hit)];
  return hit === undefined ? `${when}: ${lane.name} is not there` : `${when}: ${lane.name}, ${found.kinds[hit[2]]}${hit[3] >= 0 ? ` (v${hit[3]})` : ""}, ${(hit[1] - hit[0]).toFixed(3)} s from ${hit[0].toFixed(3)} s${load === null ? "" : `, ${(100 * load).toFixed(0)} % of its places taken`}${besideOf(found, lane.beside[lane.spans.indexOf(hit)]).map((what) => `, ${BESIDE[what][1]}`).join("")}${speed}`;
}
