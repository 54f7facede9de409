"use strict";
// What every page of charts needs: drawing, legends that hide and show, what stands under the mouse, terms, enlarging, and
// the view in the address. Text from the data only ever enters as text.

/** Data of the page, which are deflated. */
async function read(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}
const known = (value) => value !== null && value !== undefined;
const find = (id) => document.getElementById(id);
const { config, charts, models = [], at_once: atOnce = 6 } = await read("drawn");

/** An element with attributes and children; strings become text, never markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (value !== false && known(value)) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
const swatch = (kind, colour) => make("i", { class: `swatch ${kind}`, "--key": colour, "aria-hidden": "true" });
/** A link that saves a value as a file. */
function offer(link, name, value) {
  link.download = name;
  link.href = URL.createObjectURL(new Blob([JSON.stringify(value)], { type: "application/json" }));
}
function listen(id, event, action) {
  const element = find(id);
  if (element) element.addEventListener(event, action);
}

// What a reader has hidden, by the field of the rows that it stands in.
const many = models.length > atOnce;
const hidden = new Map();
const isHidden = (field, value) => hidden.get(field)?.has(value) ?? false;
function hide(field, value, on) {
  if (!hidden.has(field)) hidden.set(field, new Set());
  if (on) hidden.get(field).add(value); else hidden.get(field).delete(value);
  if (field === "model") giveColours();
}
const slots = new Map();
/** Of more models than there are colours, those that are shown have one each, and keep it. */
function giveColours() {
  if (!many) return;
  for (const model of [...slots.keys()]) if (isHidden("model", model)) slots.delete(model);
  models.forEach((_, model) => {
    if (!isHidden("model", model) && !slots.has(model)) {
      const taken = new Set(slots.values());
      slots.set(model, [...Array(models.length).keys()].find((slot) => !taken.has(slot)) % atOnce);
    }
    const colour = slots.has(model) ? `var(--model-${slots.get(model)})` : "var(--rule)";
    document.documentElement.style.setProperty(`--shown-${model}`, colour);
  });
}

let redraw = () => {};
let remember = () => {};
/** Entries that stand for rows are buttons, which hide and show them. */
function legend(id, entries) {
  const box = find(id);
  if (!box) return;
  const kept = document.activeElement?.closest?.(`#${CSS.escape(id)}`) ? document.activeElement.textContent : null;
  box.replaceChildren(...entries.filter(([, , , field, value]) => !(many && field === "model" && isHidden(field, value))).map(([kind, colour, label, field, value]) => {
    if (!field || entries.length < 2) return make("span", {}, swatch(kind, colour), label);
    const button = make("button", { type: "button", class: "key", "aria-pressed": String(!isHidden(field, value)), title: "Hide or show" }, swatch(kind, colour), label);
    button.addEventListener("click", () => { hide(field, value, !isHidden(field, value)); redraw(field); remember(); });
    return button;
  }));
  if (kept !== null) [...box.children].find((child) => child.textContent === kept)?.focus();
}

const tip = find("tip");
/** Where it can be read: near a point, and inside the window. */
function putNear(box, x, y) {
  const { width, height } = box.getBoundingClientRect(), room = document.documentElement.clientWidth;
  const left = x + 16 + width < room ? x + 16 : Math.max(4, x - 16 - width);
  const top = y + 16 + height < innerHeight ? y + 16 : Math.max(4, y - 16 - height);
  box.style.left = `${Math.min(left, Math.max(4, room - width - 4))}px`;
  box.style.top = `${top}px`;
}
/** Vega calls this with the item under the pointer, and with an empty value where there is none. */
function showTip(keys, event, item, value) {
  const told = value && item && item.datum && item.datum.tip;
  tip.hidden = !told;
  if (!told) return;
  (document.querySelector("dialog[open]") || document.body).append(tip);
  const rows = told.filter(([key]) => !isHidden(keys[key][3], keys[key][4]));
  tip.replaceChildren(make("strong", {}, item.datum.title), ...rows.map(([key, text]) => {
    const [kind, colour, label] = keys[key];
    return make("div", {}, make("span", {}, ...(colour ? [swatch(kind, colour)] : []), label), make("b", {}, text));
  }));
  putNear(tip, event.clientX, event.clientY);
}
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
addEventListener("pointerdown", (event) => { if (!event.target.closest("svg")) tip.hidden = true; });

/** Terms are explained where they stand: a button opens what it means, Escape or another click closes it. */
function explain(button) {
  for (const other of document.querySelectorAll(".term[aria-expanded=true]")) {
    if (other !== button) { other.setAttribute("aria-expanded", "false"); find(`term-${other.dataset.term}`).hidden = true; }
  }
  if (!button) return;
  const meaning = find(`term-${button.dataset.term}`), open = button.getAttribute("aria-expanded") !== "true";
  button.setAttribute("aria-expanded", String(open));
  button.setAttribute("aria-describedby", meaning.id);
  meaning.hidden = !open;
  if (!open) return;
  button.after(meaning);
  const { left, bottom } = button.getBoundingClientRect();
  putNear(meaning, left - 16, bottom - 10);
}
addEventListener("click", (event) => explain(event.target.closest(".term")));
addEventListener("keydown", (event) => { if (event.key === "Escape") { explain(null); tip.hidden = true; } });
addEventListener("scroll", () => explain(null), { passive: true });

/** Without the rows that are hidden. */
function shownOf(part) {
  if (Array.isArray(part)) return part.map(shownOf);
  if (!part || typeof part !== "object") return part;
  const out = {};
  for (const [name, value] of Object.entries(part)) {
    const rows = name === "values" && Array.isArray(value) && value.every((row) => row && typeof row === "object");
    out[name] = rows ? value.filter((row) => ![...hidden].some(([field, values]) => values.has(row[field]))) : shownOf(value);
  }
  return out;
}
const rowsOf = (part) => (!part || typeof part !== "object" ? [] : Object.entries(part).flatMap(([name, value]) => (
  name === "values" && Array.isArray(value) && !("field" in part) ? value.filter((row) => row && typeof row === "object" && Object.keys(row).length) : rowsOf(value))));

const drawn = new Map();
/** Put a panel into its place; a later one for the same place wins, whichever is ready first. */
async function draw(element, panel, missing, changed = {}, clicked = () => {}) {
  drawn.get(element)?.result?.finalize();
  const entry = { result: null, rows: [], title: panel?.title || panel?.described || "" };
  drawn.set(element, entry);
  if (!panel) {
    element.replaceChildren(make("p", { class: "empty" }, missing));
    element.dataset.ready = "empty";
    return;
  }
  const spec = shownOf(panel.spec);
  entry.rows = changed.datasets ? changed.datasets.points : rowsOf(spec).map(({ tip: _, title: __, ...row }) => row);
  const full = {
    $schema: "https://vega.github.io/schema/vega-lite/v6.json", autosize: { type: "fit-x", contains: "padding" },
    ...spec, description: panel.described || panel.title || "", config, ...changed,
  };
  if (element.closest("dialog") && !changed.height) full.height = Math.max(full.height, innerHeight - 230);
  const inner = make("div", { class: "chart" });
  inner.style.height = `${element.clientHeight}px`; // so that the page does not jump
  for (const [i, width] of (panel.widths || []).entries()) element.style.setProperty(["--least", "--most"][i], `${width}px`);
  element.replaceChildren(inner);
  const tooltip = (_, event, item, value) => showTip(panel.tips || [], event, item, value);
  const result = await vegaEmbed(inner, full, { renderer: "svg", actions: false, ast: true, tooltip, defaultStyle: false, logLevel: 1 });
  if (drawn.get(element) !== entry) { result.finalize(); return; }
  inner.style.height = "";
  entry.result = result;
  inner.querySelector("svg")?.setAttribute("role", "img");
  inner.querySelector("svg")?.setAttribute("aria-label", full.description);
  result.view.addEventListener("click", (event, item) => {
    if (event.pointerType === "touch") showTip(panel.tips || [], event, item, item?.datum); // a finger does not hover
    clicked(item?.datum);
  });
  element.dataset.ready = "yes";
}

const drawingOf = (name, model) => charts[name].drawings[charts[name].of_model[charts[name].one_model ? model : 0]];
/** A chart: for each of its places the panel that was chosen, and what is written around it. */
function drawChart(name, model = 0, without = false, clicked = () => {}) {
  const { missing } = charts[name], drawing = drawingOf(name, model);
  legend(`${name}-legend`, drawing.legend);
  for (const element of document.querySelectorAll(`[data-chart="${name}"] [data-place], dialog [data-of="${name}"] [data-place]`)) {
    const option = find(`option-${element.dataset.place}`)?.value;
    const panel = drawing.panels.find((one) => (one.place || name) === element.dataset.place
      && (!option || one.option === option) && (one.without_massive ?? without) === without);
    const figure = element.closest("figure"), beside = figure.querySelector(".beside"), finding = figure.querySelector(".finding");
    beside?.replaceChildren(panel?.note || "", ...(panel?.keys || []).map(([kind, colour, label]) => make("span", { class: "key" }, swatch(kind, colour), label)));
    finding.textContent = panel?.finding || "";
    finding.hidden = !panel?.finding;
    draw(element, panel, missing, {}, clicked);
  }
}

// One figure fills the window, and goes back to where it was.
const large = find("large");
let enlarged = null;
function enlarge(figure) {
  if (enlarged) return;
  const place = make("span", { hidden: "" });
  figure.before(place);
  find("large-place").dataset.of = figure.closest("[data-chart]")?.dataset.chart || "";
  find("large-place").replaceChildren(figure);
  const key = find(`${find("large-place").dataset.of}-legend`), keyPlace = make("span", { hidden: "" });
  if (key) { key.before(keyPlace); find("large-legend").append(key); }
  enlarged = { figure, place, key, keyPlace };
  large.setAttribute("aria-label", figure.querySelector("figcaption b")?.textContent || "Enlarged chart");
  large.showModal();
  redraw("size");
}
large?.addEventListener("close", () => {
  if (!enlarged) return;
  const { figure, place, key, keyPlace } = enlarged;
  place.replaceWith(figure);
  if (key) keyPlace.replaceWith(key);
  enlarged = null;
  document.body.append(tip);
  redraw("size");
  figure.querySelector(".enlarge")?.focus();
});
listen("large-close", "click", () => large.close());
addEventListener("click", (event) => {
  const button = event.target.closest(".enlarge");
  if (!button) return;
  if (enlarged) large.close(); else enlarge(button.closest("figure"));
});
listen("large-data", "click", (event) => {
  const { rows, title } = drawn.get(enlarged.figure.querySelector(".chart[id]")) || {};
  const names = models.map(({ label }) => label);
  offer(event.currentTarget, "chart.json", { title, models: names, rows });
});

// The view is in the address, so that it can be sent: what differs from how a page opens, and nothing else.
const anchors = () => location.hash && !location.hash.includes("=");
function viewInAddress() {
  const given = new Map(anchors() ? [] : new URLSearchParams(location.hash.slice(1)));
  return given;
}
function putInAddress(view) {
  const kept = Object.entries(view).filter(([, value]) => known(value) && value !== "");
  if (!kept.length && (anchors() || !location.hash)) return;
  const text = new URLSearchParams(kept).toString();
  try { history.replaceState(null, "", `${location.pathname}${location.search}${text ? `#${text}` : ""}`); } catch { /* a page inside another one has no address of its own */ }
}

/** Tables that are wider than the screen say so. */
function markWide() {
  for (const box of document.querySelectorAll(".scroll, .wide")) box.classList.toggle("more", box.scrollWidth > box.clientWidth + 2);
}
addEventListener("resize", markWide);
addEventListener("toggle", markWide, true);
addEventListener("beforeprint", () => { for (const details of document.querySelectorAll("#verdict details")) details.open = true; });
