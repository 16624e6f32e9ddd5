// Samples: prompts and responses token by token, coloured by policy version, logprob, drift or weight; and a search for it.
import { make, card, table, short, versionClass } from "./dom.js";

export let isMoving = false; // while samples are still to be read
export const isOfMoment = false, isOfSteps = true;
export const isWaiting = () => isMoving;
const LIKELY = [[-0.1, "p0", "over 90 %"], [-0.7, "p1", "over 50 %"], [-2.3, "p2", "over 10 %"]];
const UNLIKELY = ["p3", "under 10 %"];
// Up to which number a class holds: nats that the trained weights find a token likelier; what its loss was multiplied with.
const DRIFTS = [[-2, "d0", "2 nats less likely"], [-0.5, "d1", "less likely"], [0.5, "d2", "alike"], [2, "d3", "likelier"], [Infinity, "d4", "2 nats likelier"]];
const WEIGHTS = [[0, "d0", "0: left out"], [0.8, "d1", "under 0.8"], [1.25, "d2", "about 1"], [2, "d3", "up to 2"], [Infinity, "d4", "over 2"]];
const MOST_STEPS = 200; // in the list; others are found by their number
const PER_PAGE = 50;
const TOKENS_AT_ONCE = 400; // drawn one by one when they come near to the window
const isHeldOut = (group) => group >= 2 ** 40; // answered for an evaluation: nothing is trained of it
const ASKED = ["of_step", "version", "reward_from", "reward_to", "age", "source", "only", "text", "sort", "order", "prompt", "part"]; // `page` is which page of the view
const SORTS = { newest: "newest", reward: "reward", advantage: "advantage", length: "length", drift: "drift", repeats: "repeated 4-grams" };
const ONLY = { cut: "cut off", partial: "several versions", equal: "group without signal", held_out: "failed in an evaluation" };
let standing = null; // what is read in the page, and stays there when other samples are kept
const VIEWS = { best: ["reward", "down"], worst: ["reward", "up"], longest: ["length", "down"], "most off-policy": ["drift", "down"], "most repeated": ["repeats", "down"] };

export async function render({ ask, go, here, isAgain }) {
  const { run } = here, { kept, has_text } = await ask("samples");
  isMoving = false;
  if (!kept.length) return [card("Samples", make("p", { class: "dim" }, "None are kept (yet): samples.groups of each finished step are."))];
  const words = here.words, stays = isAgain && kept.some(([of, group]) => of === standing?.step && group === standing.group) ? standing : null, asked = Object.fromEntries(ASKED.filter((name) => words[name]).map((name) => [name, words[name]]));
  const found = Object.keys(asked).length && !window.inFile ? await ask("samples/found", asked) : null;
  isMoving = found !== null && found.left > 0;
  const first = found?.found[0] ?? null;
  const newest = (kept.findLast(([, group]) => !isHeldOut(group)) ?? kept[kept.length - 1])[0];
  const step = Number(words.step ?? stays?.step ?? (first ? first.step : newest));
  const groups = kept.filter(([of]) => of === step).map(([, group]) => group);
  const group = Number(words.group ?? stays?.group ?? (first && words.step === undefined ? first.group : groups[0]));
  const member = words.member ?? stays?.member ?? (first && words.step === undefined ? first.member : undefined);
  standing = isMoving ? null : { step, group, member }; // what is still searched may find a better one
  const by = words.by ?? "version";
  const sample = groups.includes(group) && !(found && !found.count) ? await ask(`samples/${step}/${group}`) : null;
  const one = sample === null ? card(null, make("p", { class: "dim" }, found && !found.count ? "No response to read." : "This group is not kept."))
    : shown(sample, { by, go, hasText: has_text, member: member === undefined ? null : Number(member) });
  return [
    ...(window.inFile ? [] : [card(null, filters(words, go, sources(here, found)))]),
    ...(found ? [card(null, ...hits(found, { ask: (path) => ask(path, {}, { run }), go, chosen: `${step} ${group} ${member}` })), one]
      : [make("div", { class: "split" }, card("Steps", steps(kept, step, group, go)), make("div", {}, one))]),
  ];
}

function steps(kept, step, group, go) {
  const all = [...new Set(kept.map(([of]) => of))].reverse(), near = all.slice(0, MOST_STEPS);
  return make("div", { class: "list" }, [...near, ...(near.includes(step) || !all.includes(step) ? [] : [step])].map((one) => make("div", {},
    make("button", { class: one === step ? "on" : "", onclick: () => go({ page: "samples", step: one, group: null, member: null }) }, `step ${one}`),
    one === step ? kept.filter(([of]) => of === one).map(([, other]) => make("button", { class: other === group ? "on" : "", onclick: () => go({ step: one, group: other, member: null }) }, `  group ${other}`)) : null)),
    all.length > near.length ? make("p", { class: "dim" }, `${short(all.length - near.length)} older ones: give the step above.`) : null);
}

/** Names of data sources: those of the configuration, and those that rows name. */
const sources = (here, found) => [...new Set([...(here.runs[here.run].config?.data.sources ?? []).map((one) => one.name), ...(found?.sources ?? [])])].filter(Boolean);

const NOTHING = Object.fromEntries([...ASKED, "step", "group", "member"].map((name) => [name, null]));

function filters(words, go, names) {
  const field = (name, label, more = {}) => make("label", {}, `${label} `, make("input", { name, value: words[name] ?? "", class: "short", inputmode: "decimal", ...more }));
  const only = (words.only ?? "").split(",");
  const send = (event) => {
    event.preventDefault();
    const said = new FormData(event.target);
    const plain = Object.fromEntries(["text", "of_step", "version", "reward_from", "reward_to", "age", "source", "sort", "order"].map((name) => [name, said.get(name)?.trim() || null]));
    if (plain.sort === "newest" && plain.order === "down") plain.sort = plain.order = null;
    go({ ...NOTHING, ...plain, only: said.getAll("only").join(",") || null });
  };
  const choose = (name, values, label) => make("select", { name, "aria-label": label },
    Object.entries(values).map(([value, text]) => make("option", { value, selected: value === (words[name] ?? Object.keys(values)[0]) }, text)));
  const view = (name) => make("button", { type: "button", class: words.sort === VIEWS[name][0] && words.order === VIEWS[name][1] ? "on" : "",
    onclick: () => go({ step: null, group: null, member: null, part: null, sort: VIEWS[name][0], order: VIEWS[name][1] }) }, name);
  return make("form", { onsubmit: send, role: "search" },
    make("div", { class: "row" }, make("input", { type: "search", name: "text", value: words.text ?? "", maxlength: 200, placeholder: "text of prompt or response", "aria-label": "text of prompt or response" }),
      field("of_step", "step"), field("version", "version"), field("reward_from", "reward from"), field("reward_to", "to"), field("age", "versions old, at least"),
      names.length ? choose("source", { "": "every source", ...Object.fromEntries(names.map((name) => [name, name])) }, "source") : null),
    make("div", { class: "row" }, Object.entries(ONLY).map(([value, label]) => make("label", {}, make("input", { type: "checkbox", name: "only", value, checked: only.includes(value) }), ` ${label}`)),
      choose("sort", SORTS, "sorted by"), choose("order", { down: "greatest first", up: "smallest first" }, "order"),
      make("button", {}, "Find"), make("button", { type: "button", onclick: () => go(NOTHING) }, "all")),
    make("div", { class: "row" }, make("span", { class: "dim" }, "of these, or of all: "), Object.keys(VIEWS).map(view)));
}

function hits(found, { ask, go, chosen }) {
  const open = (one) => go({ step: one.step, group: one.group, member: one.member });
  const hasSources = found.found.some((one) => one.source);
  const pages = Math.max(1, Math.ceil(found.count / PER_PAGE));
  const turn = (page, label) => make("button", { disabled: page < 0 || page >= pages, onclick: () => go({ part: page || null, step: null, group: null, member: null }) }, label);
  return [
    make("div", { class: "row" }, make("b", {}, `${short(found.count)} response${found.count === 1 ? "" : "s"}`),
      found.left ? make("span", { class: "warn", role: "status" }, `${short(found.left)} groups still to be read`) : null,
      found.refused ? make("span", { class: "bad", role: "alert" }, found.refused) : null,
      ...found.damaged.map((words) => make("span", { class: "bad" }, words)),
      pages > 1 ? make("span", { class: "row" }, turn(found.page - 1, "⟵"), `page ${found.page + 1} of ${short(pages)}`, turn(found.page + 1, "⟶")) : null,
      found.found.length ? make("button", { onclick: () => downloadAll(found.found, ask) }, "JSONL of this page") : null),
    found.found.length ? make("div", { class: "list hits" }, table(["step", "group", "reward", "advantage", "tokens", "drift", "repeated", "versions", "", ...(hasSources ? ["source"] : []), "text"], found.found.map((one) => [
      one.step, make("button", { class: chosen === `${one.step} ${one.group} ${one.member}` ? "on" : "", onclick: () => open(one) }, `${one.group}.${one.member}`),
      one.reward ?? "–", one.advantage ?? "–", one.length, one.drift === null ? "–" : Number(one.drift.toFixed(3)), `${(100 * one.repeats).toFixed(0)} %`,
      one.versions.map((version) => `v${version}`).join(" "), [one.is_cut ? "cut off" : "", one.is_equal ? "no signal" : ""].filter(Boolean).join(", "), ...(hasSources ? [one.source] : []),
      make("span", { class: "mono" }, one.text)]))) : null,
  ];
}

/** One kept group: its prompt, and its responses token by token. */
export function shown(sample, { by, go, hasText, member }) {
  const rewards = sample.responses.map((one) => one.reward);
  const mean = rewards.reduce((sum, one) => sum + one, 0) / rewards.length;
  const versions = [...new Set(sample.responses.flatMap((one) => one.versions))].filter((one) => one !== null).sort((a, b) => a - b);
  const button = (name, words) => make("button", { class: by === name ? "on" : "", onclick: () => go({ by: name }) }, words);
  const link = (words, change) => make("a", { href: "#", onclick: (event) => { event.preventDefault(); go(change); } }, words);
  const ranked = [...sample.responses].sort((a, b) => (b.member === member) - (a.member === member) || b.reward - a.reward);
  return card(isHeldOut(sample.group) ? `Held-out group ${sample.group}, answered before step ${sample.step}` : `Group ${sample.group} of step ${sample.step}`,
    hasText ? null : make("p", { class: "warn" }, "The run's tokenizer is not here, so tokens are shown by their numbers."),
    make("p", { class: "dim" }, `kept for: ${sample.why}; staleness ${sample.staleness}; rewards ${short(Math.min(...rewards))} to ${short(Math.max(...rewards))}, mean ${short(mean)}`),
    make("div", { class: "row" }, "colour by ", button("version", "policy version"), button("logprob", "probability"), button("drift", "drift"), button("weight", "weight"),
      window.inFile ? null : link("its life", { page: "group", group: sample.group }),
      window.inFile ? null : link("the same prompt over time", { page: "samples", ...NOTHING, prompt: sample.prompt_digest, sort: "newest", order: "up" }),
      make("button", { onclick: () => download(sample.responses.map((one) => lineOf(sample, one)), `step_${sample.step}_group_${sample.group}.jsonl`) }, "JSONL")),
    make("div", { class: "legend" }, by === "version" ? versions.map((version) => make("span", { class: versionClass(version) }, `■ v${version}`)) : legend(by)),
    (by === "drift" || by === "weight") && !sample.responses.some((one) => one.weights.some((weight) => weight !== null))
      ? make("p", { class: "warn" }, "The trainer told nothing of these tokens: no drift and no weight is known.") : null,
    sample.prompt ? make("h3", {}, "prompt") : null, sample.prompt ? make("div", { class: "text" }, sample.prompt) : null,
    ...ranked.map((one) => response(one, by, one.member === member)));
}

function response(one, by, isChosen) {
  const parts = Object.entries(one.parts).map(([name, value]) => `, ${name} ${short(value)}`).join("");
  const text = make("div", { class: "text" });
  for (let begin = 0; begin < one.texts.length; begin += TOKENS_AT_ONCE) text.append(passage(one, begin, by));
  return make("div", { class: `response${isChosen ? " chosen" : ""}` }, make("div", { class: "dim" }, `.${one.member}  reward ${short(one.reward)}${parts}${one.advantage === null ? "" : `, advantage ${short(one.advantage)}`}, ${one.texts.length} tokens, ends by ${one.ending}`), text);
}

/** Some tokens in a row: plain text, until they come near to the window. */
function passage(one, begin, by) {
  const tokens = one.texts.slice(begin, begin + TOKENS_AT_ONCE), place = make("div", { class: "passage" }, tokens.join(""));
  const watcher = new IntersectionObserver((seen) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    watcher.disconnect();
    place.replaceChildren(...tokens.map((token, offset) => word(one, token, begin + offset, by)));
  }, { rootMargin: "300px" });
  watcher.observe(place);
  return place;
}

function word(one, token, place, by) {
  return make("span", {
    class: colour(one, place, by),
    title: one.versions[place] === null ? "given by the environment, not trained"
      : `v${one.versions[place]}, ${one.logprobs[place] === null ? "its engine told no finite logprob" : `${(100 * Math.exp(one.logprobs[place])).toFixed(1)} % (${one.logprobs[place]})`}`
        + (one.drifts[place] === null ? "" : `, drift ${one.drifts[place]}`) + (one.weights[place] === null ? "" : `, weight ${one.weights[place]}`),
  }, token);
}

function colour(one, place, by) {
  if (one.versions[place] === null) return "dim";
  if (by === "version") return versionClass(one.versions[place]);
  if (by === "logprob") return likelihood(one.logprobs[place]);
  return by === "drift" ? upTo(DRIFTS, one.drifts[place]) : upTo(WEIGHTS, one.weights[place]);
}

const upTo = (classes, number) => number === null ? "dim" : classes.find(([most]) => number <= most)[1];

function legend(by) {
  const kinds = by === "drift" ? DRIFTS : by === "weight" ? WEIGHTS : [...LIKELY, [null, ...UNLIKELY]];
  return kinds.map(([, kind, words]) => make("span", {}, make("span", { class: kind }, "token"), ` ${words}`));
}

const likelihood = (logprob) => logprob === null ? "dim" : LIKELY.find(([least]) => logprob >= least)?.[1] ?? UNLIKELY[0];

const lineOf = (sample, one) => JSON.stringify({ step: sample.step, group: sample.group, ...one, prompt: sample.prompt, response: one.texts.join("") });

/** The responses of one page of a search, whole; one that is gone meanwhile is left out. */
async function downloadAll(found, ask) {
  const groups = new Map(), lines = [];
  for (const { step, group, member } of found) {
    const key = `samples/${step}/${group}`;
    if (!groups.has(key)) groups.set(key, await ask(key).catch(() => null));
    const sample = groups.get(key);
    lines.push(...(sample?.responses ?? []).filter((one) => one.member === member).map((one) => lineOf(sample, one)));
  }
  download(lines, "samples.jsonl");
}

function download(lines, name) {
  const address = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "application/jsonl" }));
  make("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
