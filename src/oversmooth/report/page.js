// Controls of the page of diagnoses: what is chosen, and which of the charts that came with it follow.

const diagnoses = await read("diagnoses");
const FIRST = { model: 0, layer: 1, head: "joined", variant: "raw" };
const chosen = { ...FIRST };
const VARIANTS = { raw: "raw, as in the papers", folded: "norm folded in", observed: "norm folded in, observed 1/σ" };
const layers = () => models[chosen.model].layers;

const without = () => Boolean(find("without-massive")?.checked);
const clicked = (datum) => { if (datum && known(datum.layer)) chooseLayer(datum.layer, datum.head); };
function drawCharts(one_model) {
  for (const name of Object.keys(charts)) {
    if (charts[name].one_model === one_model && name !== "plane") drawChart(name, chosen.model, without(), clicked);
  }
  if (one_model) { fillLayers(); lookAt(diagnoses[chosen.model]); }
}
redraw = (why) => {
  if (why === "size") {
    const name = find("large-place").dataset.of;
    if (!name && find("chart-plane")) drawPlane();
  }
  drawCharts(false);
  if (why !== "model") {
    for (const name of Object.keys(charts)) if (charts[name].one_model && name !== "plane") drawChart(name, chosen.model, without(), clicked);
  }
  fillChosen();
};

/** The strip and the list of layers, for the model chosen. */
function fillLayers() {
  const strip = find("strip");
  if (!strip) return;
  legend("plane-legend", drawingOf("plane", chosen.model).legend);
  const name = (i) => diagnoses[chosen.model].layers[i].name;
  const usable = layers().map((layer, i) => [layer, i]).filter(([layer]) => layer);
  if (!layers()[chosen.layer]) chosen.layer = usable.length ? usable[0][1] : 0;
  find("layer").replaceChildren(...usable.map(([layer, i]) => make("option", { value: i, title: name(i) }, `${i} · ${layer.name}`)));
  strip.replaceChildren(...layers().slice(1).map((layer, i) => {
    const share = layer ? layer.share : "–";
    return make("button", {
      type: "button", role: "radio", disabled: layer ? false : "", "data-layer": i + 1, title: `${i + 1} · ${name(i + 1)}: ${share} of λ with Re λ < 0`,
      "aria-label": `layer ${i + 1}, ${name(i + 1)}, ${share} negative`, "--cell": layer ? layer.cell : "transparent", "--on-cell": layer ? layer.on : "inherit",
    }, String(i + 1));
  }));
  chooseLayer(chosen.layer);
}

function chooseLayer(layer, head) {
  const spectrum = layers()[layer], strip = find("strip");
  if (!strip) return;
  if (!spectrum) {
    for (const id of ["heads", "layer", "variant"]) find(id).replaceChildren();
    find("spectrum-finding").textContent = "";
    draw(find("chart-plane"), null, charts.plane.missing);
    return;
  }
  chosen.layer = layer;
  if (known(head)) chosen.head = String(head);
  find("layer").value = layer;
  for (const button of strip.children) {
    const on = Number(button.dataset.layer) === layer;
    button.setAttribute("aria-checked", on);
    button.tabIndex = on ? 0 : -1;
  }
  const variants = Object.keys(spectrum.joined);
  if (!variants.includes(chosen.variant)) chosen.variant = variants[0];
  find("variant").replaceChildren(...variants.map((name) => make("option", { value: name }, VARIANTS[name] || name)));
  find("variant").value = chosen.variant;
  fillHeads(spectrum);
  drawPlane();
}

function fillHeads(spectrum) {
  const joined = spectrum.joined[chosen.variant], heads = spectrum.heads[chosen.variant] || [];
  if (chosen.head !== "joined" && chosen.head !== "every" && !heads[Number(chosen.head)]) chosen.head = "joined";
  if (chosen.head === "every" && !heads.length) chosen.head = "joined";
  const row = (value, label, of) => {
    const input = make("input", { type: "radio", name: "head", value });
    input.checked = value === chosen.head;
    return make("label", {}, input, make("span", {}, label), make("b", {}, of ? of[0] : ""), make("b", {}, of ? of[2] : ""));
  };
  const kept = document.activeElement && document.activeElement.name === "head";
  const box = find("heads"), scroll = box.parentElement.scrollTop;
  box.replaceChildren(
    make("legend", {}, "Heads"),
    make("div", { class: "titles" }, make("span"), make("span", {}, "spectrum of"), make("b", {}, "Re λ < 0"), make("b", {}, "ρ smooth")),
    row("joined", "all heads jointly", joined),
    ...(heads.length ? [row("every", "every head")] : []),
    ...heads.map((of, i) => row(String(i), `head ${i}`, of)),
  );
  box.parentElement.scrollTop = scroll;
  if (kept) box.querySelector("input:checked")?.focus();
}

/** The eigenvalues of what was chosen, put into the description of the plane. */
function drawPlane() {
  const { variant, head, layer } = chosen, said = layers()[layer], place = find("chart-plane");
  const { name, spectrum } = diagnoses[chosen.model].layers[layer];
  const heads = spectrum.heads[variant] || [], one = Number(head);
  const rows = (of, { real, imag }) => real.map((re, i) => ({ re, im: imag[i], of }));
  const ofHeads = (wanted) => heads.flatMap((values, i) => (wanted(i) ? rows(`head ${i}`, values) : []));
  const joined = head === "joined", every = head === "every";
  const points = joined ? rows("all heads jointly", spectrum.joined[variant]) : ofHeads((i) => every || i === one);
  const quiet = joined || every ? [] : ofHeads((i) => i !== one);
  const which = joined ? "all heads jointly" : every ? "every head" : `head ${one}`;
  const of = joined ? said.joined[variant] : every ? null : said.heads[variant][one];
  const sigma = variant === "observed" && known(said.inverse_sigma) ? `, mean 1/σ ${said.inverse_sigma}` : "";
  find("spectrum-finding").textContent = `${layer} · ${name}, ${which}, ${variant}${sigma}` +
    (of ? `: ${of[0]} of eigenvalues have Re λ < 0, mean Re λ is ${of[1]}, ρ smooth is ${of[2]} (ringed).` : `: ${heads.length} heads.`);
  const panel = drawingOf("plane", chosen.model).panels[0], { aspect, highest } = panel.spec.usermeta;
  const most = place.closest("dialog") ? innerHeight - 230 : highest;
  const width = Math.max(240, place.clientWidth), height = Math.round(Math.min(most, width * aspect));
  const box = find("view").value === "circle" ? [-2, 0, -1, 1] : [0, 0, 0, 0];
  for (const { re, im } of points.concat(quiet)) {
    box[0] = Math.min(box[0], re); box[1] = Math.max(box[1], re);
    box[2] = Math.min(box[2], im); box[3] = Math.max(box[3], im);
  }
  const { left, right, top, bottom } = panel.spec.padding;
  draw(place, points.length + quiet.length ? panel : null, "These eigenvalues were not stored.", {
    width: width - left - right, height: height - top - bottom, datasets: { points, quiet },
    params: panel.spec.params.map((one) => (one.name === "box" ? { ...one, value: box } : one)),
    description: `Eigenvalues of H, ${name}, ${which}, in the complex plane`,
  }, clicked);
  place.dataset.shown = `${chosen.model}/${layer}/${head}/${variant}`;
}

// Of many models, a few are shown at a time.
function fillChosen() {
  const box = find("chosen-models");
  if (!box) return;
  const shown = models.length - (hidden.get("model")?.size || 0);
  find("chosen-count").textContent = `${shown} of ${models.length}`;
  for (const input of box.querySelectorAll("input")) {
    input.checked = !isHidden("model", Number(input.value));
    input.disabled = !input.checked && shown >= atOnce;
  }
}
listen("chosen-models", "change", (event) => { hide("model", Number(event.target.value), !event.target.checked); redraw("model"); remember(); });
listen("find-model", "input", (event) => {
  const wanted = event.target.value.trim().toLowerCase();
  for (const label of find("chosen-models").querySelectorAll("label")) label.hidden = !label.textContent.toLowerCase().includes(wanted);
});

const options = () => [...document.querySelectorAll("figcaption select")];
const placeOf = (select) => select.id.replace(/^option-/, "");
const startsHidden = () => new Set(many ? models.map((_, model) => model).filter((model) => model >= atOnce) : []);
remember = () => {
  const away = hidden.get("model") || new Set(), start = startsHidden();
  const same = away.size === start.size && [...away].every((model) => start.has(model));
  const off = [...hidden].filter(([field]) => field !== "model").flatMap(([field, values]) => [...values].map((value) => `${field}:${value}`));
  const view = { models: same ? "" : models.map((_, model) => model).filter((model) => !away.has(model)).join(",") || "none", off: off.join("|"), massive: without() ? "without" : "" };
  for (const select of options()) view[placeOf(select)] = select.selectedIndex ? select.value : "";
  for (const [name, first] of Object.entries(FIRST)) view[name] = chosen[name] === firstOf(name, first) ? "" : chosen[name];
  if (find("view")) view.view = find("view").value === "fit" ? "" : find("view").value;
  if (one) { view.depth = looked.depth === one.similarity.length - 1 ? "" : looked.depth; view.token = looked.chosen ? looked.token : ""; }
  putInAddress(view);
};
const firstOf = (name, first) => (name === "layer" ? Math.max(1, layers().findIndex((layer) => layer)) : first);
function recall() {
  const view = viewInAddress(), number = (name, most) => {
    const value = Number(view.get(name));
    return view.get(name) && Number.isInteger(value) && value >= 0 && value < most ? value : null;
  };
  hidden.clear();
  const wanted = view.has("models") ? view.get("models").split(",").filter((text) => text !== "none").map(Number).slice(0, many ? atOnce : models.length) : null;
  models.forEach((_, model) => { if (wanted ? !wanted.includes(model) : startsHidden().has(model)) hide("model", model, true); });
  giveColours();
  for (const pair of (view.get("off") || "").split("|").filter(Boolean)) hide(pair.slice(0, pair.indexOf(":")), pair.slice(pair.indexOf(":") + 1), true);
  if (find("without-massive")) find("without-massive").checked = view.get("massive") === "without";
  for (const select of options()) select.selectedIndex = Math.max(0, [...select.options].findIndex((option) => option.value === view.get(placeOf(select))));
  chosen.model = number("model", models.length) ?? FIRST.model;
  chosen.layer = number("layer", layers().length) ?? FIRST.layer;
  chosen.head = view.get("head") || FIRST.head;
  chosen.variant = view.get("variant") || FIRST.variant;
  if (find("model")) find("model").value = chosen.model;
  if (find("view")) find("view").value = view.get("view") === "circle" ? "circle" : "fit";
  const shown = diagnoses[chosen.model].one_input;
  looked.depth = shown ? number("depth", shown.similarity.length) : null;
  looked.token = shown ? number("token", shown.groups) : null;
  looked.chosen = known(looked.token);
}

listen("without-massive", "change", () => { drawCharts(false); remember(); });
for (const select of options()) {
  select.addEventListener("change", () => {
    const name = select.closest("[data-chart]")?.dataset.chart || find("large-place").dataset.of;
    drawChart(name, chosen.model, without(), clicked);
    remember();
  });
}
listen("model", "change", (event) => { chosen.model = Number(event.target.value); drawCharts(true); remember(); });
listen("layer", "change", (event) => { chooseLayer(Number(event.target.value)); remember(); });
listen("variant", "change", (event) => { chosen.variant = event.target.value; chooseLayer(chosen.layer); remember(); });
listen("view", "change", () => { drawPlane(); remember(); });
listen("heads", "change", (event) => { chosen.head = event.target.value; drawPlane(); remember(); });
listen("strip", "click", (event) => {
  const button = event.target.closest("button");
  if (button) { chooseLayer(Number(button.dataset.layer)); remember(); }
});
listen("strip", "keydown", (event) => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const buttons = [...find("strip").children].filter((button) => !button.disabled);
  const at = buttons.findIndex((button) => button.getAttribute("aria-checked") === "true");
  if (!step || at < 0) return;
  event.preventDefault();
  const next = buttons[(at + step + buttons.length) % buttons.length];
  chooseLayer(Number(next.dataset.layer));
  remember();
  next.focus();
});

let width = document.documentElement.clientWidth, waiting = 0;
addEventListener("resize", () => {
  // the plane keeps one unit for both axes, so it is drawn for a width and not stretched to it
  if (document.documentElement.clientWidth === width) return;
  width = document.documentElement.clientWidth;
  clearTimeout(waiting);
  waiting = setTimeout(() => { if (find("chart-plane") && layers()[chosen.layer]) drawPlane(); drawTokens(); }, 120);
});

for (const link of document.querySelectorAll("#downloads a")) {
  const model = Number(link.dataset.model);
  const name = models[model].label.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "") || "diagnosis";
  offer(link, `${name}.json`, diagnoses[model]);
}
function open() {
  recall();
  drawCharts(false);
  drawCharts(true);
  fillChosen();
  markWide();
}
addEventListener("hashchange", () => { if (!anchors()) open(); });
open();
