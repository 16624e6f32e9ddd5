// Group: the life of one prompt as bars over time, coloured by policy version, and its story.
import { make, draw, card, table, short, versionClass } from "./dom.js";
import { shown } from "./samples.js";
import { Reading, Unanswered } from "./reading.js";

export const isMoving = false, isOfMoment = true;
// How a response that did not end by itself left its instance.
const EDGES = { interrupt: ["--warn", "interrupted, and goes on"], length: ["--v5", "cut off"], aborted: ["--bad", "taken away"], failed: ["--bad", "failed"], lost: ["--bad", "lost with its worker"] };
const LEFT = 74, ROW = 15, WIDTH = 1100, LINE = 14, LETTER = 6.2; // of the text below, its height and how wide a letter is

export async function render({ ask, go, here }) {
  const search = make("form", { class: "row", onsubmit: (event) => { event.preventDefault(); go({ page: "group", group: new FormData(event.target).get("group") }); } },
    make("label", {}, "Group ", make("input", { name: "group", type: "number", min: 0, required: true, value: here.words.group ?? "" })), make("button", {}, "Show"));
  if (!here.words.group) return [card("Group", make("p", { class: "dim" }, "The number of a prompt, from 0; or click a group in the ledger."), search)];
  if (!/^\d{1,15}$/.test(here.words.group)) return [card("Group", search, make("p", { class: "bad", role: "alert" }, `${JSON.stringify(here.words.group)} is no number of a prompt.`))];
  const found = await ask(`groups/${encodeURIComponent(here.words.group)}`).catch((error) => {
    if (error instanceof Reading || error instanceof Unanswered) throw error; // no answer of the view yet, or none at all
    return { refused: error.message };
  });
  if (found.refused) return [card("Group", search, make("p", { class: "bad", role: "alert" }, found.refused))];
  const { life, standing } = found;
  const said = await spoken(ask, found.samples, { go, here });
  return [
    card(`Group ${here.words.group}`, search, standing === null ? make("p", { class: "dim" }, "It is not in the system at this moment.")
      : make("p", {}, `${standing.state}${standing.policy_version === null ? "" : `, began at v${standing.policy_version}`}${standing.due === null ? "" : `, due in the batch of v${standing.due}`}; ${standing.prompt_tokens} prompt tokens`
        + (standing.starts > 1 ? `; begun ${standing.starts} times` : ""))),
    card("Its life", life.bars.length ? swimlane(life) : make("p", { class: "dim" }, "No response was routed."), legend(life), deadline(life)),
    standing === null || !standing.members.length ? null : card("Responses at this moment", table(["", "state", "where", "tokens", "about", "attempt", "versions", "ends by", "reward", "advantage"],
      standing.members.map((one) => [`.${one.member}`, one.state, one.where, one.tokens, isOpen(one) ? one.expected : "", one.attempt,
        one.segments.map(([, version, count]) => (version < 0 ? `${count} given` : `${count} by v${version}`)).join(" + "), one.ending, one.reward ?? "", one.advantage ?? ""]))),
    ...said,
    card("Story", make("pre", { class: "story" }, life.lines.join("\n"))),
  ].filter((one) => one !== null);
}

/** Whether it may get more tokens, so that a length is predicted. */
const isOpen = ({ state }) => state !== "finished" && state !== "dropped";

/** Its responses as text, of each step that kept it; a sample that is damaged is named. */
async function spoken(ask, samples, { go, here }) {
  if (!samples.length) return [];
  const { has_text } = await ask("samples");
  return Promise.all(samples.map(([step, group]) => ask(`samples/${step}/${group}`)
    .then((sample) => shown(sample, { by: here.words.by ?? "version", go, hasText: has_text, member: null }), (error) => card("What was said", make("p", { class: "bad" }, error.message)))));
}

const versions = (life) => [...new Set(life.bars.flatMap((bar) => bar.pieces.map(([, version]) => version)))].sort((a, b) => a - b);

function legend(life) {
  return make("div", { class: "legend" }, versions(life).map((version) => make("span", { class: versionClass(version) }, `■ tokens by v${version}`)),
    make("span", {}, "grey: routed, and no token yet"),
    Object.entries(EDGES).filter(([ending]) => life.bars.some((bar) => bar.ending === ending)).map(([, [colour, words]]) => make("span", {}, make("i", { style: { background: `var(${colour})`, width: "4px" } }), words)));
}

/** The last batch that may take it, while nothing of that is in the picture. */
const deadline = (life) => (life.due === null || life.due_s !== null ? null
  : make("p", { class: "dim" }, `Deadline: step ${life.due + 1}, the batch of v${life.due}, is the last that may take it, and has not been made.`));

/** What happened to the group and its deadline, each in the first row where it hides no other. */
function labels(life, x) {
  const late = life.due_s === null ? [] : [[life.due_s, `deadline ${life.due_s.toFixed(1)} s: step ${life.due + 1}, the batch of v${life.due}, was the last that could take it`]];
  const taken = []; // of each row, from where to where
  return [...life.marks.map(([second, what]) => [second, `${what} ${second.toFixed(1)} s`]), ...late].map(([second, text], place) => {
    const end = x(second) > WIDTH * 0.7, wide = text.length * LETTER + 12;
    const [from, until] = end ? [x(second) - wide, x(second)] : [x(second), x(second) + wide];
    const isFree = (row) => (taken[row] ?? []).every(([left, right]) => until < left || from > right);
    let row = 0;
    while (!isFree(row)) row += 1;
    (taken[row] ??= []).push([from, until]);
    return { second, text, row, end, isDeadline: place === life.marks.length };
  });
}

function swimlane(life) {
  const times = [...life.bars.flatMap((bar) => [bar.begin_s, bar.end_s ?? bar.begin_s, ...bar.pieces.map(([second]) => second)]), ...life.marks.map(([second]) => second), ...(life.due_s === null ? [] : [life.due_s])];
  const from = Math.min(...times), until = Math.max(...times, from + 0.001);
  const x = (second) => LEFT + ((second - from) / (until - from)) * (WIDTH - LEFT - 20);
  const members = [...new Set(life.bars.map((bar) => bar.member))].sort((a, b) => a - b);
  const bars = members.length * ROW, told = labels(life, x);
  const height = bars + LINE * (1 + Math.max(-1, ...told.map(({ row }) => row))) + 8;
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "Responses over time" });
  members.forEach((member, row) => svg.append(draw("text", { x: 4, y: row * ROW + 12 }, `.${member}`)));
  for (const bar of life.bars) {
    const y = members.indexOf(bar.member) * ROW + 3;
    const end = bar.end_s ?? until;
    svg.append(draw("rect", { x: x(bar.begin_s), y, width: Math.max(1, x(end) - x(bar.begin_s)), height: ROW - 5, fill: "var(--line)", rx: 2 },
      draw("title", {}, `${bar.member}, attempt ${bar.attempt} on ${bar.worker}: ${(end - bar.begin_s).toFixed(2)} s, ${bar.pieces.reduce((sum, [, , count]) => sum + count, 0)} tokens, ends by ${bar.ending || "nothing yet"}`)));
    let since = bar.begin_s;
    for (const [second, version, count] of bar.pieces) {
      svg.append(draw("rect", { x: x(since), y, width: Math.max(1, x(second) - x(since) - 0.4), height: ROW - 5, class: versionClass(version), fill: "currentColor", "pointer-events": "none" }));
      since = second;
    }
    if (bar.ending in EDGES) svg.append(draw("rect", { x: x(end) - 1.5, y: y - 2, width: 3, height: ROW - 1, fill: `var(${EDGES[bar.ending][0]})`, "pointer-events": "none" }));
  }
  for (const { second, text, row, end, isDeadline } of told) {
    const colour = isDeadline ? "var(--bad)" : "var(--dim)";
    svg.append(draw("line", { class: isDeadline ? "deadline" : null, x1: x(second), x2: x(second), y1: 0, y2: bars + row * LINE + 6, stroke: colour, ...(isDeadline ? { "stroke-width": 2 } : { "stroke-dasharray": "3 3" }) }));
    svg.append(draw("text", { x: x(second) + (end ? -3 : 3), y: bars + row * LINE + 12, "text-anchor": end ? "end" : "start", ...(isDeadline ? { fill: colour } : {}) }, text));
  }
  return svg;
}
