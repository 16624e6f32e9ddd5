// What is shown while the journal is read as far as the moment that was asked for: how far that is, and what the run says of itself.
import { make, card, figure, short, duration, versionName } from "./dom.js";
import { speeds } from "./now.js";

/** Thrown in place of an answer: the view is on its way to the moment, and goes on when it is asked again. */
export class Reading extends Error {
  constructor({ reading, said }) {
    super("The journal is being read.");
    this.number = reading.number;
    this.last = reading.last;
    this.of = reading.of; // a file that is read beside the journal; of it these are bytes
    this.said = said;
  }
}

/** Thrown where nobody answers; what a page itself does wrong is another error. */
export class Unanswered extends Error {
  constructor() {
    super("The view does not answer.");
  }
}

/** One line; `begun` is where the reading stood when it was first heard of, and when. */
export function inWords({ number, last, of }, begun = null) {
  const seconds = begun === null ? 0 : (performance.now() - begun.at) / 1000;
  const left = begun !== null && number > begun.number ? `, about ${duration(((last - number) * seconds) / (number - begun.number))} to the end` : "";
  if (of) return `reading ${of}: ${short(Math.round(number / 1e6))} of ${short(Math.round(last / 1e6))} MB${left}`;
  return `reading the journal: event ${short(number)} of ${short(last)}${left}`;
}

/** In place of a page; of a moment in the past the run's own words say nothing. */
export function render(reading, begun, isNewest) {
  const { said, number, last } = reading;
  const headline = said.reason ?? (said.waiting_for ? `Waits for ${said.waiting_for}` : null);
  return [
    card(`${reading.of ?? "The journal"} is being read`,
      make("div", { class: "bar", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": last, "aria-valuenow": number },
        make("i", { style: { width: `${(100 * number) / Math.max(1, last)}%`, background: "var(--accent)" } })),
      make("p", { class: "dim" }, `${inWords(reading, begun)}. This page comes when it is read; Metrics and Samples need not wait.`)),
    ...(isNewest && said.steps !== undefined ? [card("What the run says of itself",
      headline === null ? null : make("p", { class: "headline" }, headline),
      make("div", { class: "figures" },
        figure(said.steps_wanted === undefined ? short(said.steps) : `${short(said.steps)} of ${short(said.steps_wanted)}`, "train steps"),
        said.published_version === undefined ? null : figure(versionName(said.published_version), "newest version published"),
        ...speeds(said.last_step)))] : []),
  ];
}
