// Heat: the staleness of the trained data, a column per step (or of some), a row per age, as dark as its share.
import { make, colour, short, painted } from "./dom.js";

const ROW = 18, LEFT = 34, BOTTOM = 18, TOP = 4, MOST_HIGH = 210;
const AGAIN_MS = 500; // until the next look, while the history is being read
const asking = new WeakSet(); // places whose next look is on its way
const FAINTEST = 0.001; // share that a logarithmic scale still shows

/** A place for both maps, which asks for what it shows, and again as long as the history is read. */
export function heats(ask, isLog) {
  const place = make("div", {}, make("p", { class: "dim" }, "reading the history …"));
  fill(place, ask, isLog);
  return place;
}

/** Ask anew for the maps in this place. */
export function renew(place, ask, isLog) {
  if (!asking.has(place)) fill(place, ask, isLog);
}

async function fill(place, ask, isLog) {
  asking.add(place);
  const found = await ask("ages", {}, { atMoment: false, isPatient: () => true }).catch((error) => ({ trouble: error.message, steps: [] }));
  const isBehind = !found.trouble && found.passed < found.of;
  place.replaceChildren(
    found.trouble ? make("p", { class: "bad" }, found.trouble) : isBehind ? make("p", { class: "warn", role: "status" }, `reading the history: ${short(found.passed)} of ${short(found.of)} events`) : "",
    found.steps.length ? make("div", { class: "heats" }, map("trajectories", found, isLog), map("tokens", found, isLog)) : make("p", { class: "dim" }, "No batch is trained yet."));
  if (!isBehind) asking.delete(place);
  else setTimeout(() => { if (place.isConnected) fill(place, ask, isLog); else asking.delete(place); }, AGAIN_MS);
}

function map(what, found, isLog) {
  const columns = found[what], rows = columns[0].length, row = Math.max(6, Math.min(ROW, MOST_HIGH / rows));
  const total = columns.flat().reduce((sum, one) => sum + one, 0);
  const means = columns.reduce((sum, ages) => sum + ages.reduce((of, count, age) => of + age * count, 0), 0) / Math.max(1, total);
  const under = make("output", {}, `mean ${short(means)} versions`);
  const view = make("canvas", { role: "img", "data-scale": isLog ? "log" : "linear", "aria-label": `Staleness of trained ${what} over steps: mean ${short(means)} versions, at most ${oldest(columns)}` });
  const place = make("div", {}, view);
  painted(place, () => paint(view, place, { columns, found, row, isLog }));
  view.addEventListener("pointermove", (event) => {
    const box = view.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left - LEFT) / (box.width - LEFT)) * columns.length), age = rows - 1 - Math.floor((event.clientY - box.top - TOP) / row);
    if (column < 0 || column >= columns.length || age < 0 || age >= rows) return;
    under.textContent = `${stepsOf(found, column)}, ${ageOf(found, age, rows)}: ${short(columns[column][age])} ${what} (${(100 * shareOf(columns[column], age)).toFixed(1)} %)`;
  });
  return make("div", {}, make("h3", {}, `${what} by staleness`, under), place);
}

const oldest = (columns) => columns.reduce((most, ages) => Math.max(most, ages.findLastIndex((count) => count > 0)), 0);
const stepsOf = (found, column) => { const [from, to] = found.steps[column]; return from === to ? `step ${from}` : `steps ${from} to ${to}`; };
const ageOf = (found, age, rows) => (found.is_cut && age === rows - 1 ? `${age} or more versions old` : `${age} version${age === 1 ? "" : "s"} old`);
const shareOf = (ages, age) => ages[age] / Math.max(1, ages.reduce((sum, one) => sum + one, 0));

/** How dark a share is: in proportion, or by its logarithm, so that a thousandth can still be seen. */
const darkness = (share, isLog) => (share <= 0 ? 0 : isLog ? 0.12 + 0.88 * Math.max(0, 1 - Math.log(share) / Math.log(FAINTEST)) : 0.06 + 0.94 * share);

function paint(view, place, { columns, found, row, isLog }) {
  const rows = columns[0].length, width = Math.max(200, place.clientWidth), height = TOP + rows * row + BOTTOM, ratio = window.devicePixelRatio || 1;
  view.width = Math.round(width * ratio);
  view.height = Math.round(height * ratio);
  view.style.setProperty("width", `${width}px`);
  view.style.setProperty("height", `${height}px`);
  const pen = view.getContext("2d"), [accent, dim, line] = ["--accent", "--dim", "--line"].map((name) => colour(name, place));
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const x = (column) => LEFT + (column / columns.length) * (width - LEFT), y = (age) => TOP + (rows - 1 - age) * row;
  pen.fillStyle = accent;
  columns.forEach((ages, column) => ages.forEach((count, age) => {
    pen.globalAlpha = darkness(shareOf(ages, age), isLog);
    pen.fillRect(x(column), y(age), Math.max(0.5, x(column + 1) - x(column) - (columns.length < 120 ? 1 : 0)), row - 1);
  }));
  pen.globalAlpha = 1;
  pen.strokeStyle = line;
  pen.strokeRect(LEFT - 0.5, TOP - 0.5, width - LEFT, rows * row);
  pen.fillStyle = dim;
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const every = Math.ceil(12 / row);
  for (let age = 0; age < rows; age += every) pen.fillText(found.is_cut && age === rows - 1 ? `${age}+` : String(age), LEFT - 6, y(age) + row / 2);
  ends(pen, found, { width, height, x, columns });
}

function ends(pen, found, { width, height, x, columns }) {
  const count = Math.max(1, Math.min(columns.length, Math.floor((width - LEFT) / 90)));
  for (let place = 0; place < count; place += 1) {
    const column = Math.floor((place * columns.length) / count);
    pen.textAlign = "left";
    pen.fillText(`${place ? "" : "step "}${found.steps[column][0]}`, x(column), height - BOTTOM / 2);
  }
}
