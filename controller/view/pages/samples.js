// Samples: what the model said, token by token, coloured by policy version or by logprob.
import { make, card, short, versionClass } from "./dom.js";

export const isMoving = false, isOfMoment = false;
const LIKELY = [[-0.1, "p0", "over 90 %"], [-0.7, "p1", "over 50 %"], [-2.3, "p2", "over 10 %"]];
const UNLIKELY = ["p3", "under 10 %"];

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
    make("div", { class: "row" }, "colour by ", button("version", "policy version"), button("logprob", "probability"),
      make("a", { href: "#", onclick: (event) => { event.preventDefault(); go({ page: "group", group: sample.group }); } }, "its life"),
      make("button", { onclick: () => download(lines, sample) }, "JSONL")),
    make("div", { class: "legend" }, by === "version" ? versions.map((version) => make("span", { class: versionClass(version) }, `■ v${version}`))
      : [...LIKELY.map(([, kind, words]) => make("span", {}, make("span", { class: kind }, "token"), ` ${words}`)), make("span", {}, make("span", { class: UNLIKELY[0] }, "token"), ` ${UNLIKELY[1]}`)]),
    sample.prompt ? make("h3", {}, "prompt") : null, sample.prompt ? make("div", { class: "text" }, sample.prompt) : null,
    ...ranked.map((one) => response(one, by)));
}

function response(one, by) {
  const parts = Object.entries(one.parts).map(([name, value]) => `, ${name} ${short(value)}`).join("");
  const text = make("div", { class: "text" });
  one.texts.forEach((token, place) => text.append(make("span", {
    class: one.versions[place] === null ? "dim" : by === "version" ? versionClass(one.versions[place]) : likelihood(one.logprobs[place]),
    title: one.versions[place] === null ? "given by the environment, not trained"
      : `v${one.versions[place]}, ${(100 * Math.exp(one.logprobs[place])).toFixed(1)} % (${one.logprobs[place]})`,
  }, token)));
  return make("div", { class: "response" }, make("div", { class: "dim" }, `.${one.member}  reward ${short(one.reward)}${parts}, advantage ${short(one.advantage)}, ${one.texts.length} tokens, ends by ${one.ending}`), text);
}

const likelihood = (logprob) => LIKELY.find(([least]) => logprob >= least)?.[1] ?? UNLIKELY[0];

function download(lines, sample) {
  const address = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "application/jsonl" }));
  make("a", { href: address, download: `step_${sample.step}_group_${sample.group}.jsonl` }).click();
  URL.revokeObjectURL(address);
}
