// Now: what the run waits for, how far it is, and where its tokens and seconds went.
import { make, card, figure, table, short, duration, versionName } from "./dom.js";

export const isMoving = true, isOfMoment = true;
const SILENT_S = 5; // from which on what stands here may be old
const BEHIND_S = 1; // from which on it is told that the view has not read to the run's newest word
const FATES = { trained: "--good", in_flight: "--accent", evaluated: "--v4", filtered: "--v3", aborted: "--warn", lost: "--bad" };
const CAUSES = { training: "--good", rollout: "--accent", scoring: "--warn", weights: "--v3", data: "--v4", cap: "--v5", pace: "--v2", environments: "--v1", paused: "--dim", "start-up": "--ink" };

export async function render({ ask, go, here }) {
  const { find, who } = here.words;
  const now = await ask("now", { ...(find ? { find } : {}), ...(who ? { who } : {}) });
  const left = Math.max(0, now.steps_wanted - now.steps);
  const isOn = !now.is_over, isGiven = isSupervised(here);
  return [
    card(null,
      make("p", { class: `headline ${now.paused ? "warn" : now.is_over && !now.is_success ? "bad" : ""}` }, headline(now)),
      now.idle_because && !now.paused ? make("p", { class: "warn" }, now.idle_because) : null,
      make("div", { class: "figures" },
        figure(`${short(now.steps)} of ${short(now.steps_wanted)}`, "train steps"),
        isGiven ? null : figure(versionName(now.published_version), "newest version published"),
        figure(now.mean_step_s === null ? "–" : duration(now.mean_step_s), "between two steps"),
        isOn && now.state !== "gone" ? timeLeft(now, left) : null,
        now.pace.reward === null ? null : figure(short(now.pace.reward), `mean reward (${short(now.pace.mean_reward)} in the last steps)`),
        now.pace.tokens_per_s === null ? null : figure(short(now.pace.tokens_per_s), "tokens/s in the last steps"),
        ...(isGiven ? [] : [figure(meanAge(now.ages), `mean staleness (bound ${now.max_staleness})`, now.violations ? "bad" : ""),
          figure(short(now.violations), "older than the bound", now.violations ? "bad" : "good"),
          figure(short(now.queued), "responses queued")]),
        figure(short(now.tokens.generated), isGiven ? "tokens taken from the data" : "tokens generated"),
        ...speeds(now.last_step)),
      now.state === "live" && here.at === null ? asOf(now) : null,
      loop(now.controller)),
    now.held ? inHand(now.held, go) : null,
    ...(now.alarms.length ? [card("Look at this", table(["", "about", "what was seen", "what to do"], now.alarms.map((one) => [
      make("b", { class: "bad" }, one.name), one.owner, one.evidence, one.remedy])))] : []),
    make("div", { class: "grid" },
      card("Where the tokens went", bar(without(now.tokens, "generated"), FATES)),
      card("What the seconds went to", bar(now.spent_s, CAUSES, duration), ...phases(now.recent),
        now.pace.verdict ? make("p", {}, make("b", {}, `The last ${now.pace.steps} steps (${duration(now.pace.seconds)}): `), now.pace.verdict) : null,
        now.verdict ? make("p", { class: "dim" }, make("b", {}, `The whole run (${duration(now.now_s)}): `), now.verdict) : null)),
    make("div", { class: "grid" },
      card("Groups", table(["state", "groups"], Object.entries(now.groups)), oldest(now, go),
        now.evaluating ? make("p", {}, `Evaluating ${now.evaluating}`) : null),
      isGiven ? null : card("Staleness of what was trained", bar(now.ages, Object.fromEntries(Object.keys(now.ages).map((age) => [age, `--v${age % 6}`])), short, (age) => `${age} versions old`))),
    card("Workers", ...fleet(now, go, here), table(["worker", "role", "version", "running", "tokens held", "memory", "device", "silent", "working on", "then"], now.workers.map((one) => [
      one.name, one.role, one.policy_version < 0 ? "" : `v${one.policy_version}`, one.running, one.resident_tokens,
      one.resident_mb ? megabytes(one.resident_mb) : "", device(one), silent(one.silent_s), one.working_on,
      one.due_s === null ? "" : `in ${duration(one.due_s)} ${one.then}`]))),
  ].filter((one) => one !== null);
}

/** Whether its responses come from the data: none is generated, published for instances, or stale. */
export const isSupervised = (here) => here.runs[here.run]?.config?.trainer?.algorithm === "sft";

/** How late the controller comes to what is due, and the room on its disk; nothing of a run that does not go on. */
function loop(told) {
  if (!told.loop_lag_window_s) return null;
  const late = [["p50", "in the median"], ["p99", "p99"], ["max", "at most"]].map(([key, words]) => `${(1000 * told[`loop_lag_${key}_s`]).toFixed(1)} ms ${words}`);
  const room = told.disk_free_mb === undefined ? "" : ` ${megabytes(told.disk_free_mb)} are free on its disk.`;
  return make("p", { class: "dim loop" }, `The controller's event loop came late by ${late.join(", ")} in the last ${duration(told.loop_lag_window_s)}.${room}`);
}

/** The age of the data, and its cause. */
function asOf(now) {
  const behind = now.number < now.last ? Math.max(0, now.until_s - now.now_s) : 0;
  const words = behind < BEHIND_S ? "" : ` The view is behind the run by ${duration(behind)}: it steps its core as fast as it can.`;
  return make("p", { class: now.quiet_s + behind >= SILENT_S ? "bad" : behind >= BEHIND_S ? "warn" : "dim" }, behind < BEHIND_S ? `As the run stood when it wrote last, ${duration(now.quiet_s)} before this was asked.` : `As the run stood ${duration(now.quiet_s + behind)} before this was asked.`, words);
}

/** To the end, with its spread where there are steps enough. */
function timeLeft(now, left) {
  const { left_s, left_least_s, left_most_s } = now.pace;
  if (left_s !== null) return figure(`~ ${duration(left_s)}`, `left (${duration(left_least_s)} to ${duration(left_most_s)} at the last steps' pace)`);
  return now.mean_step_s === null ? null : figure(`~ ${duration(now.mean_step_s * left)}`, "left at that pace");
}

/** The groups of the worker whose lane was clicked, with a link to each. */
function inHand({ name, role, groups, more }, go) {
  const close = make("button", { onclick: () => go({ who: null }), "aria-label": `leave ${name}` }, "×");
  const words = role === "" ? "is not there at this moment." : groups.length ? "" : "has nothing in hand at this moment.";
  return card(`In hand of ${name}`, make("p", { class: "row" }, close, words ? `${name} ${words}` : null),
    groups.length ? table(["group", "state", role === "agent" ? "episodes" : "responses"], groups.map((one) => [
      make("a", { href: "#", onclick: (event) => { event.preventDefault(); go({ page: "group", group: one.group }); } }, `group ${one.group}`), one.state,
      one.members.length ? one.members.map(({ member, tokens }) => `.${member} (${short(tokens)} tokens)`).join(", ") : "all"])) : null,
    more ? make("p", { class: "dim" }, `and ${short(more)} more groups`) : null);
}

/** Of more workers than a table may have: sums by role, and a search. */
function fleet(now, go, here) {
  if (!now.roles?.length) return [];
  return [
    table(["role", "workers", "ready", "versions", "running", "tokens held", "most memory", "longest silent"], now.roles.map((one) => [
      one.role, one.workers, one.ready, Object.entries(one.versions).map(([version, count]) => `v${version}: ${count}`).join(", "), one.running, one.tokens,
      one.resident_mb ? megabytes(one.resident_mb) : "", silent(one.silent_s)])),
    make("p", { class: "row" },
      ...(window.inFile ? [] : [make("input", { type: "search", size: 24, placeholder: "part of a worker's name", value: here.words.find ?? "", "aria-label": "part of a worker's name", onchange: (event) => go({ find: event.target.value || null }) })]),
      make("span", { class: "dim" }, now.workers_found > now.workers.length ? `${now.workers.length} of ${short(now.workers_found)}: those that are due soonest, then the longest silent` : `${short(now.workers_found)} found`)),
  ];
}

const silent = (seconds) => make("span", { class: seconds > 5 ? "warn" : "" }, `${seconds.toFixed(1)} s`);

/** What the newest step says of the devices; nothing of what it does not say. */
export function speeds(line) {
  const told = (key, label, format) => (line[key] === undefined ? null : figure(format(line[key]), label));
  return [
    told("throughput/tokens_per_s_per_device", "tokens/s generated per device", short),
    told("throughput/trained_tokens_per_s_per_device", "tokens/s trained per device", short),
    told("compute/flops_per_token", "FLOPs per trained token", scaled),
    told("compute/flops_per_s_per_device", "FLOPs/s per trainer device", scaled),
    told("compute/mfu", "of the trainer device's peak (MFU)", (share) => `${(100 * share).toFixed(1)} %`),
  ];
}

function phases({ steps, phases }) {
  const shares = Object.fromEntries(Object.entries(phases).map(([key, share]) => [key.slice(6), share]));
  return Object.keys(shares).length ? [make("p", { class: "dim" }, steps === 1 ? "The newest step:" : `The last ${steps} steps:`), bar(shares, CAUSES, (share) => `${(100 * share).toFixed(0)} %`, undefined, false)] : [];
}

function scaled(value) {
  const [size, name] = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1, ""]].find(([size]) => value >= size) ?? [1, ""];
  return `${(value / size).toPrecision(3)} ${name}`;
}

const megabytes = (mb) => (mb < 1024 ? `${mb} MB` : `${(mb / 1024).toFixed(1)} GB`);

const device = (one) => (one.device_total_mb ? `${one.device}: ${megabytes(one.device_mb)} of ${megabytes(one.device_total_mb)}` : one.device);

function headline(now) {
  if (now.is_over || now.ending) return now.ending || "The run is over.";
  return now.paused ? `PAUSED: ${now.paused}` : `Waits for ${now.waiting_for}`;
}

function oldest(now, go) {
  const group = now.oldest_group;
  if (group === null) return null;
  return make("p", {}, "The oldest is ", make("a", { href: "#", onclick: (event) => { event.preventDefault(); go({ page: "group", group: group.id }); } }, `group ${group.id}`),
    `: ${group.state}${group.policy_version < 0 ? "" : ` since v${group.policy_version}`}, waits for ${group.waits_for}`);
}

const without = (counts, name) => Object.fromEntries(Object.entries(counts).filter(([key]) => key !== name));

function meanAge(ages) {
  const all = Object.values(ages).reduce((sum, count) => sum + count, 0);
  return all ? (Object.entries(ages).reduce((sum, [age, count]) => sum + age * count, 0) / all).toFixed(2) : "–";
}

export function bar(counts, colours, format = short, name = (key) => key, hasShares = true) {
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const parts = Object.entries(counts).filter(([, count]) => count > 0);
  const colour = (key) => `var(${colours[key] ?? "--dim"})`;
  if (!total) return make("p", { class: "dim" }, "Nothing yet.");
  return make("div", {},
    make("div", { class: "bar", role: "img", "aria-label": parts.map(([key, count]) => `${name(key)} ${format(count)}`).join(", ") },
      parts.map(([key, count]) => make("i", { style: { width: `${(100 * count) / total}%`, background: colour(key) }, title: `${name(key)}: ${format(count)}` }))),
    make("div", { class: "legend" }, parts.map(([key, count]) => make("span", {}, make("i", { style: { background: colour(key) } }),
      `${name(key)} ${format(count)}${hasShares ? ` (${((100 * count) / total).toFixed(1)} %)` : ""}`))));
}
