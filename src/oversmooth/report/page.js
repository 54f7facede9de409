"use strict";
// Controls of the page: what is chosen, and which of the charts that came with it follow. Text from the data only ever
// enters as text.

(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const diagnoses = read("diagnoses"), { config, charts, models } = read("drawn");
  const known = (value) => value !== null && value !== undefined;
  const find = (id) => document.getElementById(id);
  const chosen = { model: 0, layer: 1, head: "joined", variant: "raw" };
  const VARIANTS = { raw: "raw, as in the papers", folded: "norm folded in", observed: "norm and observed 1/σ" };
  const layers = () => models[chosen.model].layers;
  const drawingOf = (name) => charts[name].drawings[charts[name].of_model[charts[name].one_model ? chosen.model : 0]];

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
  function legend(id, entries) {
    const box = find(id);
    if (box) box.replaceChildren(...entries.map(([kind, colour, label]) => make("span", {}, swatch(kind, colour), label)));
  }

  const tip = find("tip");
  /** Vega calls this with the item under the pointer, and with an empty value where there is none. */
  function showTip(keys, event, item, value) {
    const found = value && item && item.datum && item.datum.tip;
    tip.hidden = !found;
    if (!found) return;
    tip.replaceChildren(make("strong", {}, item.datum.title), ...found.map(([key, text]) => {
      const [kind, colour, label] = keys[key];
      return make("div", {}, make("span", {}, ...(colour ? [swatch(kind, colour)] : []), label), make("b", {}, text));
    }));
    const box = tip.getBoundingClientRect(), room = document.documentElement.clientWidth;
    const left = event.clientX + 16 + box.width < room ? event.clientX + 16 : Math.max(4, event.clientX - 16 - box.width);
    const top = event.clientY + 16 + box.height < innerHeight ? event.clientY + 16 : Math.max(4, event.clientY - 16 - box.height);
    tip.style.left = `${Math.min(left, Math.max(4, room - box.width - 4))}px`;
    tip.style.top = `${top}px`;
  }

  /** A description with its columns of data as rows again. */
  function unpacked(part) {
    if (Array.isArray(part)) return part.map(unpacked);
    if (!part || typeof part !== "object") return part;
    if (!part.columns) return Object.fromEntries(Object.entries(part).map(([name, value]) => [name, unpacked(value)]));
    const columns = Object.entries(part.columns).map(([name, column]) => [name, Array.isArray(column) ? column : column.at.map((place) => column.of[place])]);
    return { values: columns[0][1].map((_, i) => Object.fromEntries(columns.map(([name, column]) => [name, column[i]]))) };
  }

  const drawn = new Map();
  /** Put a panel into its place; a later one for the same place wins, whichever is ready first. */
  async function draw(element, panel, missing, changed = {}) {
    drawn.get(element)?.result?.finalize();
    const entry = { result: null };
    drawn.set(element, entry);
    if (!panel) {
      element.replaceChildren(make("p", { class: "empty" }, missing));
      element.dataset.ready = "empty";
      return;
    }
    const full = {
      $schema: "https://vega.github.io/schema/vega-lite/v6.json", autosize: { type: "fit-x", contains: "padding" },
      ...unpacked(panel.spec), description: panel.described || panel.title || "", config, ...changed,
    };
    const inner = make("div", { class: "chart" });
    inner.style.height = `${element.clientHeight}px`; // so that the page does not jump
    for (const [i, width] of (panel.widths || []).entries()) element.style.setProperty(["--least", "--most"][i], `${width}px`);
    element.replaceChildren(inner);
    const tooltip = (_, event, item, value) => showTip(panel.tips, event, item, value);
    const result = await vegaEmbed(inner, full, { renderer: "svg", actions: false, ast: true, tooltip, defaultStyle: false, logLevel: 1 });
    if (drawn.get(element) !== entry) { result.finalize(); return; }
    inner.style.height = "";
    entry.result = result;
    result.view.addEventListener("click", (event, item) => {
      if (event.pointerType === "touch") showTip(panel.tips, event, item, item?.datum); // a finger does not hover
      if (item?.datum && known(item.datum.layer)) chooseLayer(item.datum.layer, item.datum.head);
    });
    element.dataset.ready = "yes";
  }

  /** A chart: for each of its places the panel that was chosen, and what is written around it. */
  function drawChart(name) {
    const { missing } = charts[name], drawing = drawingOf(name);
    const without = Boolean(find("without-massive")?.checked);
    legend(`${name}-legend`, drawing.legend);
    for (const element of document.querySelectorAll(`[data-chart="${name}"] [data-place]`)) {
      const option = find(`option-${element.dataset.place}`)?.value;
      const panel = drawing.panels.find((one) => (one.place || name) === element.dataset.place
        && (!option || one.option === option) && (one.without_massive ?? without) === without);
      const figure = element.closest("figure"), beside = figure.querySelector(".beside"), finding = figure.querySelector(".finding");
      beside?.replaceChildren(panel?.note || "", ...(panel?.keys || []).map(([kind, colour, label]) => make("span", { class: "key" }, swatch(kind, colour), label)));
      finding.textContent = panel?.finding || "";
      finding.hidden = !panel?.finding;
      draw(element, panel, missing);
    }
  }
  const drawCharts = (one_model) => {
    for (const name of Object.keys(charts)) if (charts[name].one_model === one_model && name !== "plane") drawChart(name);
    if (one_model) fillLayers();
  };

  /** The strip and the list of layers, for the model chosen. */
  function fillLayers() {
    const strip = find("strip");
    if (!strip) return;
    legend("plane-legend", drawingOf("plane").legend);
    const name = (i) => diagnoses[chosen.model].layers[i].name;
    const usable = layers().map((layer, i) => [layer, i]).filter(([layer]) => layer);
    if (!layers()[chosen.layer]) chosen.layer = usable.length ? usable[0][1] : 0;
    find("layer").replaceChildren(...usable.map(([layer, i]) => make("option", { value: i, title: name(i) }, `${i} · ${layer.name}`)));
    strip.replaceChildren(...layers().slice(1).map((layer, i) => {
      const share = layer ? layer.share : "–";
      return make("button", {
        type: "button", role: "radio", disabled: layer ? false : "", "data-layer": i + 1, title: `${i + 1} · ${name(i + 1)}: ${share} of λ with Re λ < 0`,
        "aria-label": `layer ${i + 1}, ${name(i + 1)}, ${share} negative`, "--cell": layer ? layer.cell : "transparent",
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
      row("joined", "all heads joined", joined),
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
    const points = joined ? rows("all heads joined", spectrum.joined[variant]) : ofHeads((i) => every || i === one);
    const quiet = joined || every ? [] : ofHeads((i) => i !== one);
    const which = joined ? "all heads joined" : every ? "every head" : `head ${one}`;
    const of = joined ? said.joined[variant] : every ? null : said.heads[variant][one];
    const sigma = variant === "observed" && known(said.inverse_sigma) ? `, mean 1/σ ${said.inverse_sigma}` : "";
    find("spectrum-finding").textContent = `${layer} · ${name}, ${which}, ${variant}${sigma}` +
      (of ? `: ${of[0]} of eigenvalues have Re λ < 0, mean Re λ is ${of[1]}, ρ smooth is ${of[2]} (ringed).` : `: ${heads.length} heads.`);
    const panel = drawingOf("plane").panels[0], { aspect, highest } = panel.spec.usermeta;
    const width = Math.max(240, place.clientWidth), height = Math.round(Math.min(highest, width * aspect));
    const box = find("view").value === "circle" ? [-2, 0, -1, 1] : [0, 0, 0, 0];
    for (const { re, im } of points.concat(quiet)) {
      box[0] = Math.min(box[0], re); box[1] = Math.max(box[1], re);
      box[2] = Math.min(box[2], im); box[3] = Math.max(box[3], im);
    }
    const { left, right, top, bottom } = panel.spec.padding;
    draw(place, points.length + quiet.length ? panel : null, "These eigenvalues were not kept.", {
      width: width - left - right, height: height - top - bottom, datasets: { points, quiet },
      params: panel.spec.params.map((one) => (one.name === "box" ? { ...one, value: box } : one)),
      description: `Eigenvalues of H, ${name}, ${which}, in the complex plane`,
    });
    place.dataset.shown = `${chosen.model}/${layer}/${head}/${variant}`;
  }

  function listen(id, event, action) {
    const element = find(id);
    if (element) element.addEventListener(event, action);
  }
  listen("without-massive", "change", () => drawCharts(false));
  for (const select of document.querySelectorAll("figcaption select")) {
    select.addEventListener("change", () => drawChart(select.closest("[data-chart]").dataset.chart));
  }
  listen("model", "change", (event) => { chosen.model = Number(event.target.value); drawCharts(true); });
  listen("layer", "change", (event) => chooseLayer(Number(event.target.value)));
  listen("variant", "change", (event) => { chosen.variant = event.target.value; chooseLayer(chosen.layer); });
  listen("view", "change", drawPlane);
  listen("heads", "change", (event) => { chosen.head = event.target.value; drawPlane(); });
  listen("strip", "click", (event) => {
    const button = event.target.closest("button");
    if (button) chooseLayer(Number(button.dataset.layer));
  });
  listen("strip", "keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const buttons = [...find("strip").children].filter((button) => !button.disabled);
    const at = buttons.findIndex((button) => button.getAttribute("aria-checked") === "true");
    if (!step || at < 0) return;
    event.preventDefault();
    const next = buttons[(at + step + buttons.length) % buttons.length];
    chooseLayer(Number(next.dataset.layer));
    next.focus();
  });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  addEventListener("pointerdown", (event) => { if (!event.target.closest("svg")) tip.hidden = true; });

  let width = document.documentElement.clientWidth, waiting = 0;
  addEventListener("resize", () => {
    // the plane keeps one unit for both axes, so it is drawn for a width and not stretched to it
    if (document.documentElement.clientWidth === width || !find("chart-plane")) return;
    width = document.documentElement.clientWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (layers()[chosen.layer]) drawPlane(); }, 120);
  });

  for (const link of document.querySelectorAll("#downloads a")) {
    const model = Number(link.dataset.model);
    const name = models[model].label.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "") || "diagnosis";
    link.download = `${name}.json`;
    link.href = URL.createObjectURL(new Blob([JSON.stringify(diagnoses[model])], { type: "application/json" }));
  }
  drawCharts(false);
  drawCharts(true);
})();
