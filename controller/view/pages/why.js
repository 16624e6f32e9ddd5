// Why: the calls of strategies at this event, their answers, and the reasons for and against each candidate.
import { make, card, table, short } from "./dom.js";

export const isMoving = true, isOfMoment = true;

export async function render({ ask }) {
  const found = await ask("why");
  const event = found.event;
  if (event === null) return [card("Why", make("p", { class: "dim" }, "Nothing has happened at this moment yet. Go to a later one."))];
  const commands = event.commands.length ? make("ul", {}, event.commands.map((one) => make("li", { class: "mono" }, one)), event.more ? make("li", {}, `and ${event.more} more`) : null)
    : make("p", { class: "dim" }, "It gave no command.");
  return [
    card(`Event ${short(found.number)}`, make("p", { class: "mono" }, event.text), make("h3", {}, "commands that it gave"), commands),
    ...(found.decisions.length ? found.decisions.map(decision) : [card(null, make("p", { class: "dim" }, "No strategy was asked: what followed was bound to follow. ▶| goes to the next event that gives commands."))]),
  ];
}

function decision(one) {
  return card(`${one.kind}: ${one.about}`, make("p", { class: "headline" }, one.answer),
    one.rule ? make("p", {}, one.rule) : make("p", { class: "dim" }, "A strategy of your own: here is what it was shown."),
    one.rows.length ? table(["", "candidate", "worth", one.rule ? "because" : "shown"], one.rows.map(([name, because, worth, isChosen]) => [
      isChosen ? make("b", { class: "good" }, "chosen") : "", name, worth === null ? "" : short(worth), make("span", { class: one.rule ? "" : "mono" }, because)])) : null);
}
