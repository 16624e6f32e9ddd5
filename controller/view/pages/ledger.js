// Ledger: one column per batch of the window, a place per group, and who the next batch waits for.
import { make, card, table, short } from "./dom.js";

export const isMoving = true, isOfMoment = true;
const STATES = { occupied: "scored, waits for its batch", scoring: "being scored", generating: "generating, as high as it is done", training: "with the trainer" };

export async function render({ ask, go }) {
  const ledger = await ask("ledger");
  const open = (id) => go({ page: "group", group: id });
  const columns = ledger.columns.map((column) => batch(column, ledger, open));
  if (ledger.training.groups.length) {
    columns.unshift(make("div", { class: "column" }, make("h3", {}, `v${ledger.training.train_version} → v${ledger.training.train_version + 1}, with the trainer`),
      make("div", { class: "places" }, ledger.training.groups.map((group) => place(group, open)))));
  }
  return [
    card(null, make("p", { class: "headline" }, `The next step waits for ${ledger.waiting_for}`),
      make("p", { class: "dim" }, `Batches of ${ledger.batch_groups} groups; bound ${ledger.max_staleness}; ${ledger.reserved} groups under way, `
        + `${ledger.occupied} scored; ${short(ledger.fresh)} encoded prompts have not started.`),
      make("div", { class: "columns" }, columns),
      make("div", { class: "legend" }, Object.entries(STATES).map(([state, words]) => make("span", {}, make("i", { class: `swatch-${state}`, style: { background: colourOf(state) } }), words)),
        make("span", {}, make("i", { style: { border: "2px solid var(--bad)" } }), "due now: the batch cannot go without it"),
        make("span", {}, make("i", { style: { border: "1px dashed var(--dim)" } }), "free"))),
    card("Who the next batch waits for", ledger.waits.length ? table(["group", "state", "", "responses"], ledger.waits.map((wait) => [
      make("a", { href: "#", onclick: (event) => { event.preventDefault(); open(wait.group); } }, String(wait.group)), wait.state, wait.is_due ? make("span", { class: "bad" }, "due now") : "",
      wait.state === "scoring" ? (wait.scorer ? `its rewards from ${wait.scorer}` : "a reward worker")
        : wait.members.map((one) => `.${one.member} ${one.where ? `on ${one.where}, ${one.tokens} of about ${one.expected} tokens` : `queued with ${one.tokens} tokens`}`).join("; ")
          + (wait.more ? ` and ${wait.more} more` : "")])) : make("p", { class: "dim" }, "Nothing that is under way: it is complete, or no group has started.")),
  ];
}

const colourOf = (state) => ({ occupied: "var(--good)", scoring: "var(--warn)", generating: "var(--accent)", training: "var(--v3)" })[state];

function batch(column, ledger, open) {
  const free = column.free < 0 ? 0 : Math.max(0, Math.min(column.free, ledger.batch_groups - column.groups.length));
  const isNext = column.train_version === ledger.train_version;
  return make("div", { class: "column" },
    make("h3", {}, `${isNext ? "next: " : ""}v${column.train_version} → v${column.train_version + 1}`),
    make("div", { class: "places" }, column.groups.map((group) => place(group, open)),
      Array.from({ length: free }, () => make("span", { class: "place free", title: "a group may start here" }))),
    make("p", { class: "dim" }, `${column.state.toLowerCase().replaceAll("_", " ")}: takes ${column.occupied} scored, ${column.reserved} under way, `
      + `${column.free < 0 ? "any number" : column.free} may start`));
}

function place(group, open) {
  return make("button", {
    class: `place ${group.state} ${group.is_blocker ? "blocker" : ""}`, onclick: () => open(group.id),
    title: `group ${group.id}: ${group.state}, began at v${group.version}, ${group.finished} of ${group.size} responses done, ${group.tokens} tokens`
      + (group.queued ? `, ${group.queued} queued` : "") + (group.is_blocker ? "; due now" : ""),
  }, make("i", { style: { height: `${Math.round(100 * group.done)}%` } }), make("b", {}, String(group.id % 10000)));
}
