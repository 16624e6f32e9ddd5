// Samples: what the model said, token by token, coloured by policy version, logprob, drift or weight.
import { make, card, short, versionClass } from "./dom.js";

export const isMoving = false, isOfMoment = false;
const LIKELY = [[-0.1, "p0", "over 90 %"], [-0.7, "p1", "over 50 %"], [-2.3, "p2", "over 10 %"]];
const UNLIKELY = ["p3", "under 10 %"];
// Up to which number a class holds: nats that the trained weights find a token likelier; what its loss was multiplied with.
const DRIFTS = [[-2, "d0", "2 nats less likely"], [-0.5, "d1", "less likely"], [0.5, "d2", "alike"], [2, "d3", "likelier"], [Infinity, "d4", "2 nats likelier"]];
const WEIGHTS = [[0, "d0", "0: left out"], [0.8, "d1", "under 0.8"], [1.25, "d2", "about 1"], [2, "d3", "up to 2"], [Infinity, "d4", "over 2"]];

export async function render({ ask, go, here }) {
  const { kept, has_text } = await ask("samples");
  if (!kept.length) return [card("Samples", make("p", { class: "dim" }, "None are kept (yet): samples.groups of each finished step are."))];
  const steps = [...new Set(kept.map(([step]) => step))].reverse();
  const step = Number(here.words.step ?? steps[0]);
  const groups = kept.filter(([of]) => of === step).map(([, group]) => group);
  const chosen = Number(here.words.group ?? groups[0]);
  const by = here.words.by ?? "version";
  const sample = groups.includes(chosen) ? await ask(`samples/${step}/${chosen}`) : null;
  return [make("div", { class: "split" },
    card("Steps", make("div", { class: "list" }, steps.map((one) => make("div", {},
      make("button", { class: one === step ? "on" : "", onclick: () => go({ page: "samples", step: one, group: null }) }, `step ${one}`),
      one === step ? kept.filter(([of]) => of === one).map(([, group]) => make("button", { class: group === chosen ? "on" : "", onclick: () => go({ step: one, group }) }, `  group ${group}`)) : null)))),
    make("div", {}, sample === null ? card(null, make("p", { class: "dim" }, "This group is not kept.")) : shown(sample, by, go, has_text)))];
}

function shown(sample, by, go, hasText) {
  const rewards = sample.responses.map((one) => one.reward);
  const mean = rewards.reduce((sum, one) => sum + one, 0) / rewards.length;
  const versions = [...new Set(sample.responses.flatMap((one) => one.versions))].filter((one) => one !== null).sort((a, b) => a - b);
  const button = (name, words) => make("button", { class: by === name ? "on" : "", onclick: () => go({ by: name }) }, words);
  const ranked = [...sample.responses].sort((a, b) => b.reward - a.reward);
  const lines = sample.responses.map((one) => JSON.stringify({ step: sample.step, group: sample.group, ...one, prompt: sample.prompt, response: one.texts.join("") }));
  return card(`Group ${sample.group} of step ${sample.step}`,
    hasText ? null : make("p", { class: "warn" }, "The run's tokenizer is not here, so tokens are shown by their numbers."),
    make("p", { class: "dim" }, `kept for: ${sample.why}; staleness ${sample.staleness}; rewards ${short(Math.min(...rewards))} to ${short(Math.max(...rewards))}, mean ${short(mean)}`),
    make("div", { class: "row" }, "colour by ", button("version", "policy version"), button("logprob", "probability"), button("drift", "drift"), button("weight", "weight"),
      make("a", { href: "#", onclick: (event) => { event.preventDefault(); go({ page: "group", group: sample.group }); } }, "its life"),
      make("button", { onclick: () => download(lines, sample) }, "JSONL")),
    make("div", { class: "legend" }, by === "version" ? versions.map((version) => make("span", { class: versionClass(version) }, `■ v${version}`)) : legend(by)),
    (by === "drift" || by === "weight") && !sample.responses.some((one) => one.weights.some((weight) => weight !== null))
      ? make("p", { class: "warn" }, "The trainer told nothing of these tokens: no drift and no weight is known.") : null,
    sample.prompt ? make("h3", {}, "prompt") : null, sample.prompt ? make("div", { class: "text" }, sample.prompt) : null,
    ...ranked.map((one) => response(one, by)));
}

function response(one, by) {
  const parts = Object.entries(one.parts).map(([name, value]) => `, ${name} ${short(value)}`).join("");
  const text = make("div", { class: "text" });
  one.texts.forEach((token, place) => text.append(make("span", {
    class: colour(one, place, by),
    title: one.versions[place] === null ? "given by the environment, not trained"
      : `v${one.versions[place]}, ${(100 * Math.exp(one.logprobs[place])).toFixed(1)} % (${one.logprobs[place]})`
        + (one.drifts[place] === null ? "" : `, drift ${one.drifts[place]}`) + (one.weights[place] === null ? "" : `, weight ${one.weights[place]}`),
  }, token)));
  return make("div", { class: "response" }, make("div", { class: "dim" }, `.${one.member}  reward ${short(one.reward)}${parts}, advantage ${short(one.advantage)}, ${one.texts.length} tokens, ends by ${one.ending}`), text);
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

const likelihood = (logprob) => LIKELY.find(([least]) => logprob >= least)?.[1] ?? UNLIKELY[0];

function download(lines, sample) {
  const address = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "application/jsonl" }));
  make("a", { href: address, download: `step_${sample.step}_group_${sample.group}.jsonl` }).click();
  URL.revokeObjectURL(address);
}
