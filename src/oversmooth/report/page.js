"use strict";
// Controls of the page: what is chosen, and which charts follow from it. Text from the data only ever enters as text.

(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const diagnoses = read("diagnoses"), { labels } = read("settings");
  const { known, number, percent } = charts;
  const find = (id) => document.getElementById(id);
  const chosen = { model: 0, layer: 1, head: "joined", variant: "raw" };
  const VARIANTS = { raw: "raw, as in the papers", folded: "norm folded in", observed: "norm and observed 1/σ" };
  const diagnosis = () => diagnoses[chosen.model];

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
  function showTip(_, event, item, value) {
    const found = value && item && item.datum && item.datum.tip;
    tip.hidden = !found;
    if (!found) return;
    const [title, rows] = found;
    tip.replaceChildren(make("strong", {}, title), ...rows.map(([kind, colour, label, text]) =>
      make("div", {}, make("span", {}, ...(colour ? [swatch(kind, colour)] : []), label), make("b", {}, text))));
    const box = tip.getBoundingClientRect(), room = document.documentElement.clientWidth;
    const left = event.clientX + 16 + box.width < room ? event.clientX + 16 : Math.max(4, event.clientX - 16 - box.width);
    const top = event.clientY + 16 + box.height < innerHeight ? event.clientY + 16 : Math.max(4, event.clientY - 16 - box.height);
    tip.style.left = `${Math.min(left, Math.max(4, room - box.width - 4))}px`;
    tip.style.top = `${top}px`;
  }

  const drawn = new Map();
  /** Put a chart into its place; a later one for the same place wins, whichever is ready first. */
  async function draw(place, spec, described, missing) {
    const element = typeof place === "string" ? find(place) : place;
    if (!element) return;
    drawn.get(element)?.result?.finalize();
    const entry = { result: null };
    drawn.set(element, entry);
    if (!spec) {
      element.replaceChildren(make("p", { class: "empty" }, missing));
      element.dataset.ready = "empty";
      return;
    }
    const full = { $schema: "https://vega.github.io/schema/vega-lite/v6.json", autosize: { type: "fit-x", contains: "padding" }, ...spec, description: described, config: charts.config };
    const inner = make("div", { class: "chart" });
    inner.style.height = `${element.clientHeight}px`; // so that the page does not jump
    element.replaceChildren(inner);
    const result = await vegaEmbed(inner, full, { renderer: "svg", actions: false, ast: true, tooltip: showTip, defaultStyle: false, logLevel: 1 });
    if (drawn.get(element) !== entry) { result.finalize(); return; }
    inner.style.height = "";
    entry.result = result;
    result.view.addEventListener("click", (event, item) => {
      if (event.pointerType === "touch") showTip(null, event, item, item?.datum); // a finger does not hover
      if (item?.datum && known(item.datum.layer)) chooseLayer(item.datum.layer, item.datum.head);
    });
    element.dataset.ready = "yes";
  }

  function drawCurves() {
    if (!find("chart-hfc")) return;
    const box = find("without-massive"), without = Boolean(box && box.checked);
    const about = `of ${labels.join(", ")} over depth; the table under Numbers has the values`;
    const none = "not measured";
    const has = (metric) => diagnoses.some((d) => d.layers.some((layer) => known(layer.tokens[metric])));
    const rank = find("rank-metric").value;
    const option = find("rank-metric").selectedOptions[0], rankTitle = option.text;
    const each = (metric, word, logarithmic) => has(metric) ? charts.curves(diagnoses, labels, [{ metric }], without, logarithmic, word) : null;
    draw("chart-hfc", each("hfc_lfc", "HFC/LFC", true), `HFC/LFC ${about}`, none);
    const angles = [{ metric: "abs_cos", word: "|cos|" }, { metric: "cos", word: "cos", dashed: true }];
    draw("chart-cos", has("abs_cos") || has("cos") ? charts.curves(diagnoses, labels, angles, without, false, "cos") : null, `Mean cosine ${about}`, none);
    draw("chart-rank", each(rank, rankTitle, option.dataset.scale === "log"), `${rankTitle} ${about}`, none);
  }

  function drawAccuracy() {
    if (!find("chart-accuracy")) return;
    draw("chart-accuracy", charts.accuracy(diagnoses, labels), `Accuracy of ${labels.join(", ")} against the intensity of corruption; the table beside it has the values`, "not tested");
  }

  function drawModel() {
    const found = diagnosis(), name = labels[chosen.model];
    const parts = [...new Set(found.layers.flatMap((layer) => layer.changes.map((c) => c.part)))];
    legend("part-legend", [...parts.map((part) => ["", charts.partColour(part), part]), ...(parts.length ? [["tick", "var(--ink)", "sum"]] : [])]);
    draw("chart-changes", charts.changes(found), `What each part of ${name} changes, by layer`, "The parts of this model were not observed.");
    for (const id of ["chart-changes", "chart-dominance", "chart-radii"]) {
      // neither too narrow to tell layers apart nor, with few of them, absurdly wide
      find(id)?.style.setProperty("--least", `${14 * found.layers.length + 50}px`);
      find(id)?.style.setProperty("--most", `${150 * found.layers.length + 60}px`);
    }
    draw("chart-dominance", charts.dominance(found), `Share of inputs in which smoothing dominates, by layer and head of ${name}`, "No attention of this model was observed.");
    draw("chart-radii", charts.radii(found), `Smoothing and rough spectral radius of ${name}, by layer`, "No radii of this model are known.");
    drawCourses(found);
    fillLayers(found);
  }

  function drawCourses(found) {
    const box = find("courses");
    if (!box) return;
    const titles = { "last block": "The last block, again and again", stack: "The whole stack, again and again" };
    box.replaceChildren(...found.extrapolation.map((entry) => {
      const place = make("div", { class: "chart" });
      const title = titles[entry.what] || entry.what;
      const spectra = { smooth: "smoothing dominates", rough: "the rough part dominates", tie: "the two tie" }[entry.verdict] || entry.verdict;
      const end = known(entry.predicted_rate) ? `, HFC/LFC × ${number(entry.predicted_rate, 3)} a block in the end` : entry.verdict === "rough" ? ", HFC/LFC reaches a level" : "";
      const seen = { smooth: "kept falling", rough: "did not keep falling", open: "could not tell" }[entry.simulated_verdict] || entry.simulated_verdict;
      const words = [`Spectra: ρ smooth ${number(entry.rho_smooth)} and ρ rough ${number(entry.rho_rough)}, ${spectra}${end}.`];
      if (entry.simulated) words.push(`Simulated attention: HFC/LFC ${seen}.`);
      if (entry.real) words.push(`Real blocks: from ${charts.ratio(entry.real.log_hfc_lfc[0])} to ${charts.ratio(entry.real.log_hfc_lfc.at(-1))}.`);
      if (entry.note) words.push(entry.note);
      const about = `input ${entry.input}, H ${entry.variant}${known(entry.residual) ? `, residual ${number(entry.residual, 2)}` : ""}`;
      const figure = make("figure", {}, make("figcaption", {}, make("b", {}, title), make("span", {}, about)), place, make("p", { class: "finding quiet" }, words.join(" ")));
      queueMicrotask(() => draw(place, charts.course(entry), `${title}: ${words.join(" ")}`, "Neither simulated nor run."));
      return figure;
    }));
    if (!found.extrapolation.length) box.replaceChildren(make("p", { class: "empty" }, "Further depth was not looked at."));
    const dotted = found.extrapolation.some((entry) => known(entry.predicted_rate));
    legend("course-legend", found.extrapolation.length ? charts.COURSES.filter(([kind]) => kind !== "predicted" || dotted).map(([, label, kind, colour]) => [kind, colour, label]) : []);
  }

  /** The strip and the list of layers, for the model chosen. */
  function fillLayers(found) {
    const strip = find("strip");
    if (!strip) return;
    const usable = found.layers.map((layer, i) => [layer, i]).filter(([layer]) => layer.spectrum);
    if (!found.layers[chosen.layer]?.spectrum) chosen.layer = usable.length ? usable[0][1] : 0;
    find("layer").replaceChildren(...usable.map(([layer, i]) => make("option", { value: i, title: layer.name }, `${i} · ${charts.shorten(layer.name)}`)));
    strip.replaceChildren(...found.layers.slice(1).map((layer, i) => {
      const share = layer.spectrum?.negative_share;
      const strength = known(share) ? Math.round(100 * Math.min(1, 1.6 * Math.abs(2 * share - 1))) : 0;
      const side = share >= 0.5 ? "var(--negative)" : "var(--positive)";
      return make("button", {
        type: "button", role: "radio", disabled: layer.spectrum ? false : "", "data-layer": i + 1, title: `${i + 1} · ${layer.name}: ${percent(share)} of λ with Re λ < 0`,
        "aria-label": `layer ${i + 1}, ${layer.name}, ${percent(share)} negative`, "--cell": `color-mix(in srgb, ${side} ${strength}%, transparent)`,
      }, String(i + 1));
    }));
    chooseLayer(chosen.layer);
  }

  function chooseLayer(layer, head) {
    const spectrum = diagnosis().layers[layer]?.spectrum;
    const strip = find("strip");
    if (!strip) return;
    if (!spectrum) {
      for (const id of ["heads", "layer", "variant"]) find(id).replaceChildren();
      find("spectrum-finding").textContent = "";
      draw("chart-plane", null, "", "No weights of this model were found.");
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
      return make("label", {}, input, make("span", {}, label), make("b", {}, of ? percent(of.negative_share) : ""), make("b", {}, of ? number(of.rho_smooth, 4) : ""));
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

  function drawPlane() {
    const spectrum = diagnosis().layers[chosen.layer].spectrum, place = find("chart-plane");
    const heads = (spectrum.heads[chosen.variant] || []).map((values, head) => ({ head, values }));
    const one = Number(chosen.head);
    const shown = chosen.head === "joined" ? [{ head: null, values: spectrum.joined[chosen.variant] }]
      : chosen.head === "every" ? heads : heads.map((entry) => ({ ...entry, faint: entry.head !== one }));
    const of = chosen.head === "joined" ? spectrum.joined[chosen.variant] : heads[one]?.values;
    const name = diagnosis().layers[chosen.layer].name;
    const which = chosen.head === "joined" ? "all heads joined" : chosen.head === "every" ? "every head" : `head ${one}`;
    const sigma = chosen.variant === "observed" && known(spectrum.inverse_sigma) ? `, mean 1/σ ${number(spectrum.inverse_sigma, 3)}` : "";
    find("spectrum-finding").textContent = `${chosen.layer} · ${name}, ${which}, ${chosen.variant}${sigma}` +
      (of ? `: ${percent(of.negative_share)} of eigenvalues have Re λ < 0, mean Re λ is ${number(of.mean_real, 3)}, ρ smooth is ${number(of.rho_smooth)} (ringed).` : `: ${heads.length} heads.`);
    const empty = !shown.some(({ values }) => values.real.length);
    draw(place, empty ? null : { ...charts.plane(shown, Math.max(240, place.clientWidth), find("view").value === "circle"), autosize: { type: "none" }, padding: { left: 50, top: 8, right: 10, bottom: 42 } },
      `Eigenvalues of H, ${name}, ${which}, in the complex plane`, "These eigenvalues were not kept.");
    place.dataset.shown = `${chosen.model}/${chosen.layer}/${chosen.head}/${chosen.variant}`;
  }

  function listen(id, event, action) {
    const element = find(id);
    if (element) element.addEventListener(event, action);
  }
  listen("without-massive", "change", drawCurves);
  listen("rank-metric", "change", drawCurves);
  listen("model", "change", (event) => { chosen.model = Number(event.target.value); drawModel(); });
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
    waiting = setTimeout(() => { if (diagnosis().layers[chosen.layer]?.spectrum) drawPlane(); }, 120);
  });

  legend("model-legend", labels.length > 1 ? labels.map((label, i) => ["line", charts.colour(i), label]) : []);
  legend("accuracy-legend", labels.map((label, i) => ["line", charts.colour(i), label]).filter((_, i) => diagnoses[i].accuracy));
  legend("radius-legend", [["round", "var(--smooth)", "ρ smooth"], ["diamond", "var(--rough)", "ρ rough"]]);
  legend("plane-legend", [["round", "var(--smooth)", "|1 + λ| > 1"], ["round", "var(--negative)", "|1 + λ| < 1"], ["line dashed", "var(--soft)", "|1 + λ| = 1"], ["ring", "var(--ink)", "ρ smooth"]]);
  for (const link of document.querySelectorAll("#downloads a")) {
    const model = Number(link.dataset.model);
    const name = labels[model].replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "") || "diagnosis";
    link.download = `${name}.json`;
    link.href = URL.createObjectURL(new Blob([JSON.stringify(diagnoses[model])], { type: "application/json" }));
  }
  drawCurves();
  drawAccuracy();
  drawModel();
})();
