// Elements out of words. Text of a model or a worker only ever becomes a text node.

/** An element with attributes, event listeners (`onclick`) and children; null children are left out. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

/** The same in SVG. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(element, attributes, children);
  return element;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (value !== null && value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
}

export function card(title, ...children) {
  return make("section", { class: "card" }, title ? make("h2", {}, title) : null, ...children);
}

export function figure(value, label, kind = "") {
  return make("div", { class: "figure" }, make("b", { class: kind }, value), make("span", {}, label));
}

/** Rows of cells; a column of numbers is set to the right. */
export function table(heads, rows) {
  const isRight = (place) => rows.length > 0 && typeof rows[0][place] === "number";
  const cell = (tag) => (value) => {
    const isElement = value instanceof Node;
    const isNumber = typeof value === "number";
    return make(tag, { class: isNumber ? "number" : null }, isElement ? value : isNumber ? short(value) : String(value ?? ""));
  };
  return make("table", {}, make("thead", {}, make("tr", {}, heads.map((head, place) => make("th", { class: isRight(place) ? "number" : null }, head)))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map(cell("td"))))));
}

export const short = (value) => {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 1e7) ? value.toExponential(2) : value.toLocaleString("en", { maximumSignificantDigits: 4 });
};

export const duration = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds);
  if (whole < 60) return `${seconds < 10 ? seconds.toFixed(1) : whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
};

/** Of a policy version; before the first is published there is none. */
export const versionName = (version) => (version < 0 ? "–" : `v${version}`);

export const versionClass = (version) => `v${((version % 6) + 6) % 6}`;

/** Call `paint` when the place has a width, and again when that or the theme changes, until the place is gone; then `onGone`. */
export function painted(place, paint, onGone = () => {}) {
  const theme = matchMedia("(prefers-color-scheme: dark)");
  let wide = 0;
  const onTheme = () => { if (place.isConnected) paint(); };
  const watcher = new ResizeObserver(() => {
    if (!place.isConnected) {
      watcher.disconnect();
      theme.removeEventListener("change", onTheme);
      onGone();
    } else if (place.clientWidth !== wide) { // a height changes with what is painted
      if (!wide) theme.addEventListener("change", onTheme);
      wide = place.clientWidth;
      paint();
    }
  });
  watcher.observe(place);
}

/** What a colour of the theme is, for a canvas. */
export function colour(name, place) {
  const probe = make("span", { style: { color: `var(${name})` } });
  place.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
