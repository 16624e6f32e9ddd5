// The frame of all pages: which run, which moment, which page. The address bar has all three, so a link is enough.
import { make, duration, short } from "./dom.js";
import * as now from "./now.js";
import * as ledger from "./ledger.js";
import * as timeline from "./timeline.js";
import * as why from "./why.js";
import * as group from "./group.js";
import * as samples from "./samples.js";
import * as metrics from "./metrics.js";
import * as whatif from "./whatif.js";
import * as compare from "./compare.js";
import * as controls from "./controls.js";
import * as reading from "./reading.js";

const PAGES = { now, ledger, timeline, why, group, samples, metrics, whatif, compare, controls };
const TITLES = { now: "Now", ledger: "Ledger", timeline: "Timeline", why: "Why", group: "Group", samples: "Samples", metrics: "Metrics", whatif: "What if", compare: "Compare", controls: "Controls" };
const AGE_MS = 800; // what stands on a page is no older when the next answer comes; a second, where many ask the same
const STANDING_ROUNDS = 10; // between two looks at the list of runs
const TELL_MOMENT = ["now", "ledger", "why"]; // whose answer says where the run is, so that nobody need ask
const NAME = (sessionStorage.staleflowPage ??= [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("")); // of this tab, one of those that look, however often it is loaded
const READING_MS = 30; // until the next ask of one who waits for the journal to be read
const SLOW_MS = 200;
const SILENT_MS = 60_000; // after which a view that answers nothing counts as gone: its host may sleep
const byId = (id) => document.getElementById(id);
const here = { runs: [], mayAct: false, page: "now", run: 0, at: null, words: {}, shown: null, isAsking: false, isMissed: false, isCut: false, isHeld: false, isChanged: false, reading: null, told: null, steps: null, wrongRun: null, jumps: 0, jumpedTo: null, number: null };

/** As fetch, of a page that the view counts; throws Unanswered, and the view's words to who has no token (any more). */
async function fetchHere(address, options = {}) {
  const answer = await fetch(address, { signal: AbortSignal.timeout(SILENT_MS), ...options, headers: { ...options.headers, "x-staleflow-page": NAME } }).catch(() => { throw new reading.Unanswered(); });
  if (answer.status === 401) throw new Error(await answer.text());
  return answer;
}

/** What the server says at an address of a run; `run` and `at`, the event, are those that are shown now if no others are given. Throws its sentence if it refuses, and Reading unless `isPatient`, or `isPatient()`. */
async function ask(path, words = {}, options = {}) {
  const { atMoment, isPatient, run = here.run, at = here.at, ...rest } = options;
  const query = new URLSearchParams(words);
  if (at !== null && atMoment !== false) query.set("event", at);
  const text = query.size ? `?${query}` : "";
  const answer = await fetchHere(`/api/runs/${run}/${path}${text}`, rest);
  const found = await answer.json().catch(() => ({ error: `The view answered with status ${answer.status}.` }));
  if (answer.status === 202) {
    if (isPatient !== true && !isPatient?.()) throw new reading.Reading(found);
    if (run === here.run) byId("where").textContent = reading.inWords(found.reading);
    return ask(path, words, { ...options, run, at }); // whatever is shown by then
  }
  if (!answer.ok) throw new Error(found.error ?? `The view answered with status ${answer.status}.`);
  if (TELL_MOMENT.includes(path)) here.told = found;
  return found;
}

/** Go to another page, run or moment; words are what the page itself wants to know. */
function go(change) {
  const words = { page: here.page, run: here.run, ...(here.at === null ? {} : { at: here.at }), ...here.words, ...change };
  if (change.page && change.page !== here.page) for (const key of Object.keys(here.words)) if (!(key in change)) delete words[key];
  const { page, ...rest } = words;
  for (const key of Object.keys(rest)) if (rest[key] === null || rest[key] === undefined) delete rest[key];
  location.hash = `#${page}?${new URLSearchParams(rest)}`;
}

function readAddress() {
  const [page, query = ""] = location.hash.slice(1).split("?");
  const words = Object.fromEntries(new URLSearchParams(query));
  here.page = Object.hasOwn(PAGES, page) ? page : "now";
  const run = words.run ?? "0", isThere = /^\d{1,9}$/.test(run) && (Number(run) < here.runs.length || !here.runs.length);
  here.run = isThere ? Number(run) : 0;
  here.wrongRun = isThere ? null : run;
  here.at = words.at === undefined ? null : Math.max(0, Number.parseInt(words.at, 10) || 0);
  delete words.run;
  delete words.at;
  here.words = words;
}

const FIELDS = ["INPUT", "SELECT", "TEXTAREA"];
const SCROLLED = ".card, .list, .story, .columns";

/** Whether the user types, drags, selects or has the keyboard focus in the page, so that it must not be replaced. */
function isInHand() {
  const place = byId("page"), active = document.activeElement, selected = getSelection();
  const isFocused = place.contains(active) && (FIELDS.includes(active.tagName) || (active.tagName !== "CANVAS" && active.matches(":focus-visible")));
  return here.isHeld || isFocused || (!selected.isCollapsed && [selected.anchorNode, selected.focusNode].some((node) => place.contains(node)));
}

/** Whether a field of the page has words that nobody has sent yet. */
function hasDraft() {
  return [...byId("page").querySelectorAll("input, textarea")].some((one) => one.value !== one.defaultValue || one.checked !== one.defaultChecked);
}

/** Put the content into the page; where it is the same page as before, the focus stays in its canvas, and if `isAgain` all stays where it is scrolled to. */
function replace(content, isAgain) {
  const place = byId("page"), all = (kind) => [...place.querySelectorAll(kind)];
  const focused = place.dataset.page === here.page ? all("canvas").indexOf(document.activeElement) : -1;
  const name = (one) => `${one.className} ${one.closest(".card")?.querySelector("h2")?.textContent ?? ""}`;
  const scrolled = isAgain ? all(SCROLLED).filter((one) => one.scrollLeft || one.scrollTop).map((one) => [name(one), one.scrollLeft, one.scrollTop]) : [];
  const top = window.scrollY;
  place.replaceChildren(...content);
  all("canvas")[focused]?.focus({ preventScroll: true });
  for (const [key, left, down] of scrolled) all(SCROLLED).find((one) => name(one) === key)?.scrollTo(left, down);
  if (isAgain && window.scrollY !== top) window.scrollTo(window.scrollX, top);
}

const nameOfShown = () => `${here.page} ${here.run} ${JSON.stringify(here.words)}`;
const tools = { ask, go, here, fetchHere };

/** Show the page of the address; `isRepeated`: the same page again, `isOwn`: without the user's doing. */
async function show({ isRepeated = false, isOwn = isRepeated } = {}) {
  if (here.isAsking) { // what was asked for meanwhile is shown next; a look that is only repeated need not be
    here.isMissed ||= !isRepeated;
    return;
  }
  here.isAsking = true;
  const name = nameOfShown(), { run } = here;
  const slow = setTimeout(() => byId("page").classList.add("busy"), SLOW_MS);
  try {
    if (here.wrongRun !== null) throw new Error(`There is no run ${here.wrongRun} here: this view shows ${here.runs.length}, numbered from 0. Choose one above.`);
    const page = PAGES[here.page];
    let way = null, moment = null;
    const isAgain = isOwn && here.shown === name;
    const isHeld = () => isAgain && isInHand();
    const isStill = isRepeated && isAgain && !page.isMoving;
    const isTold = !isStill && !isHeld() && TELL_MOMENT.includes(here.page);
    if (!isTold) moment = await ask("moment").catch((error) => { // a damaged journal still has metrics
      if (error instanceof reading.Reading) way = error;
      if (page.isOfMoment || error instanceof reading.Unanswered) throw error;
      return null;
    });
    hear(run, moment); // before the page is made, which may depend on it
    const isNews = page.isOfSteps && moment !== null && moment.steps !== here.steps && !hasDraft();
    const isKept = isHeld() || (isStill && !isNews);
    const content = isKept ? null : await page.render({ ...tools, isAgain, isHeld });
    if (isTold) hear(run, moment = here.told);
    if (moment !== null && run === here.run) showMoment(moment);
    if (name === nameOfShown()) { // else somebody has gone on meanwhile, and what they want is shown next
      if (content !== null && !isHeld()) {
        replace(content, isAgain);
        here.steps = moment?.steps ?? null;
      } else if (moment !== null && page.isMoving && isHeld()) byId("where").textContent += "; the page waits, as you type into it, or something on it is selected or in focus";
      byId("page").dataset.page = here.page;
      here.shown = name;
    }
    here.isCut = false;
    byId("trouble").hidden = true;
    showReading(way);
  } catch (error) {
    const isReading = error instanceof reading.Reading;
    showReading(isReading ? error : null);
    if (isReading && name !== here.shown) {
      byId("page").replaceChildren(...reading.render(error, here.reading, here.at === null));
      here.shown = null;
    } else if (!isReading && !isRepeated) {
      byId("page").replaceChildren();
      here.shown = null;
    }
    here.isCut = error instanceof reading.Unanswered;
    showTrouble(isReading ? "" : here.isCut ? cutOff() : error.message);
  } finally {
    clearTimeout(slow);
    byId("page").classList.toggle("busy", here.reading !== null && here.shown === name && PAGES[here.page].isOfMoment);
    here.isAsking = false;
    showFrame();
  }
  if (here.isMissed) {
    here.isMissed = false;
    await show();
  }
}

const cutOff = () => `The view does not answer: it ends with the process that started it, or this machine cannot reach it. What stands here is of before. launch.py view ${here.runs[here.run]?.path ?? "RUN"} shows the run again.`;

function showTrouble(words) {
  byId("trouble").textContent = words;
  byId("trouble").hidden = words === "";
}

/** Say how far the journal is read for who waits for it; null: nobody does. */
function showReading(way) {
  const number = way?.number;
  if (way === null) here.reading = null;
  else if (here.reading === null || here.reading.at_event !== here.at || here.reading.run !== here.run || here.reading.of !== way.of || number < here.reading.number)
    here.reading = { number, at: performance.now(), at_event: here.at, run: here.run, of: way.of };
  if (way !== null) byId("where").textContent = reading.inWords(way, here.reading);
}

function showFrame() {
  const pages = window.inFile ?? Object.keys(PAGES); // a file has some of them alone
  if (!byId("tabs").children.length) byId("tabs").append(...pages.map((page) => make("a", { "data-page": page }, TITLES[page])));
  for (const tab of byId("tabs").children) { // they stay the same elements: one that is replaced under the pointer is not clicked
    const { page } = tab.dataset;
    tab.href = `#${page}?${new URLSearchParams({ run: here.run, ...(here.at === null ? {} : { at: here.at }) })}`;
    if (page === here.page) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  const run = here.wrongRun === null ? here.runs[here.run] : undefined;
  if (document.activeElement !== byId("run")) byId("run").value = here.wrongRun === null ? here.run : "";
  const kinds = { live: "good", over: "dim", gone: "bad" };
  const words = { live: "goes on", over: "is over", gone: "its controller is gone" };
  byId("state").className = `chip ${here.isCut ? "bad" : kinds[run?.state] ?? ""}`;
  byId("state").textContent = here.isCut ? "not heard" : words[run?.state] ?? "";
  byId("release").textContent = run?.other_release ? `made by another release: ${run.other_release}` : "";
  document.title = run ? `${run.name} – StaleFlow` : "StaleFlow";
}

/** Note what a moment says of whether its run goes on. */
function hear(run, moment) {
  if (here.runs[run] && moment?.state) here.runs[run].state = moment.state;
}

function showMoment(moment) {
  const slider = byId("slider");
  slider.min = moment.first;
  slider.max = moment.last;
  if (document.activeElement !== slider || here.at === null) slider.value = moment.number;
  const isDeleted = here.at !== null && here.at < moment.first && moment.number === moment.first;
  byId("where").textContent = `event ${short(moment.number)} of ${short(moment.last)}, ${duration(moment.now_s)} of ${duration(moment.until_s)}`
    + (isDeleted ? `; of event ${short(here.at)} nothing is kept (run.journal is compact), this is the first moment that is` : "");
  byId("live").classList.toggle("on", here.at === null);
  byId("back").disabled = moment.number <= moment.first;
  byId("forward").disabled = moment.number >= moment.last;
  const event = moment.event;
  byId("event").textContent = event === null ? "" : `${event.text}  →  ${event.commands.length ? event.commands.map((one) => one.split(" ")[0]).join(", ") : "nothing"}`;
  byId("event").title = event === null ? "" : event.commands.join("\n");
  here.number = moment.number;
}

/** Go to the moment that the run has for these words, or say why it has none; nothing of it once somebody has gone elsewhere. */
async function jump(words) {
  const mine = ++here.jumps, isPatient = () => mine === here.jumps;
  byId("refused").textContent = "";
  try {
    const { number } = await ask("moment", words, { atMoment: false, isPatient });
    if (!isPatient()) return;
    here.jumpedTo = "step" in words ? String(number) : null;
    go({ at: number });
  } catch (error) {
    if (isPatient()) byId("refused").textContent = error.message;
  }
}

/** Go to the nearest event that gave commands; nowhere while nobody knows where the run is, as while its journal is read. */
const seek = (direction) => here.number !== null && jump({ event: here.number, seek: direction });

/** So many events on. */
const move = (events) => here.number !== null && go({ at: Math.max(0, here.number + events) });

/** The user has gone to another moment, page or run. */
function gone() {
  const before = `${here.run} ${here.at}`, { run } = here;
  here.jumps += 1; // no answer that is still to come takes them away
  byId("refused").textContent = "";
  readAddress();
  if (`${here.run} ${here.at}` !== before && String(here.at) !== here.jumpedTo) byId("step").value = "";
  here.jumpedTo = null;
  if (here.run !== run) here.number = null; // that was an event of the other one
  show();
}

function listen() {
  let timer = null;
  byId("slider").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => go({ at: byId("slider").value }), 80);
  });
  byId("back").addEventListener("click", () => move(-1));
  byId("forward").addEventListener("click", () => move(1));
  byId("decision").addEventListener("click", () => seek("next"));
  byId("undecide").addEventListener("click", () => seek("last"));
  byId("live").addEventListener("click", () => go({ at: null }));
  byId("step").addEventListener("change", () => {
    const step = byId("step").value;
    if (step !== "") jump({ step });
  });
  byId("run").addEventListener("change", () => go({ run: byId("run").value, at: null, group: null, step: null, member: null, part: null, begin: null, end: null }));
  byId("page").addEventListener("pointerdown", () => { here.isHeld = true; });
  for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, () => { here.isHeld = false; });
  window.addEventListener("hashchange", gone);
  document.addEventListener("keydown", (event) => {
    if (FIELDS.includes(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowLeft") byId("back").click();
    else if (event.key === "ArrowRight") byId("forward").click();
    else if (event.key === "[") seek("last");
    else if (event.key === "]") seek("next");
    else if (event.key === "l" || event.key === "L") byId("live").click();
  });
}

async function readRuns() {
  const found = await (await fetchHere("/api/runs")).json();
  if (found.error) throw new Error(found.error);
  here.runs = found.runs;
  here.mayAct = found.may_act;
  const names = here.runs.map((run) => run.name);
  if (JSON.stringify(names) !== byId("run").dataset.names) { // else one that is open would be closed
    byId("run").replaceChildren(...names.map((name, place) => make("option", { value: place, selected: place === here.run }, name)));
    byId("run").dataset.names = JSON.stringify(names);
  }
}

/** Show what is new, and soon again; of a run that stands, look now and then whether somebody has started it again. */
async function follow(round = 0) {
  const state = () => here.runs[here.run]?.state;
  const before = state(), began = performance.now();
  const isLive = here.at === null && before === "live";
  if (!document.hidden && here.reading !== null) await show({ isRepeated: !PAGES[here.page].isOfMoment, isOwn: true });
  else if (!document.hidden) {
    if (isLive || PAGES[here.page].isWaiting?.()) await show({ isRepeated: true });
    if (round % STANDING_ROUNDS === 0 || state() !== before) {
      const isCut = await readRuns().then(() => false, (error) => error instanceof reading.Unanswered);
      if (isCut && !here.isCut) {
        here.isCut = true;
        showTrouble(cutOff());
        showFrame();
      } else if (!isCut && here.isCut) await show({ isOwn: true });
    }
    here.isChanged ||= state() !== before;
    if (here.isChanged && (here.at !== null || !isInHand())) { // what somebody does there is left alone
      here.isChanged = false;
      await (here.at === null ? show({ isOwn: true }) : showFrame());
    } else if (here.isChanged) showFrame();
  }
  const took = isLive ? performance.now() - began : 0; // a view that is slow to answer has as long for others
  setTimeout(() => follow(round + 1), here.reading === null ? Math.max(took, AGE_MS - 2 * took) : READING_MS);
}

if (!window.inFile && new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname + location.hash);
listen();
await readRuns().catch((error) => { byId("trouble").textContent = error.message; byId("trouble").hidden = false; });
readAddress();
await show();
follow();
