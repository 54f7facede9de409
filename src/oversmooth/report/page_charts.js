"use strict";
// Vega-Lite specifications from a diagnosis. Pure functions of data: page.js decides what is drawn where.
// Every mark that answers the mouse carries `tip`, [title, rows of [swatch class, colour, label, value]], and, where a click
// on it means a layer, `layer`.

const charts = (() => {
  const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Liberation Sans", Arial, sans-serif';
  const config = {
    background: null, font: FONT, padding: { left: 2, right: 6, top: 6, bottom: 2 },
    view: { stroke: null },
    axis: {
      labelColor: "var(--soft)", titleColor: "var(--soft)", gridColor: "var(--grid)", domainColor: "var(--rule)",
      tickColor: "var(--rule)", labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal", labelPadding: 4,
      tickSize: 4, domain: false, ticks: false, labelOverlap: true,
    },
    axisX: { grid: false, domain: true, ticks: true },
    text: { fill: "var(--soft)", fontSize: 11 },
  };
  const LOG10 = Math.log(10);
  const known = (value) => value !== null && value !== undefined;
  const colour = (model) => `var(--model-${model})`;

  /** A number in few digits; what has no meaning is a dash. */
  function number(value, digits = 4) {
    if (!known(value)) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    const text = size < 1e-3 || size >= 1e6 ? value.toExponential(digits - 2) : String(Number(value.toPrecision(digits)));
    return text.replace("-", "−");
  }
  /** A ratio from its logarithm, however small it is. */
  function ratio(log) {
    if (!known(log)) return "–";
    const power = log / LOG10;
    return Math.abs(power) < 300 ? number(10 ** power) : `1e${power.toFixed(0)}`;
  }
  const percent = (share) => (known(share) ? `${(100 * share).toFixed(1)} %` : "–");
  const signed = (value) => (known(value) && value > 0 ? "+" : "") + number(value, 3);
  /** A long name without its middle, where names of layers differ least. */
  function shorten(name, most = 28) {
    const head = Math.floor((most - 1) / 3);
    return name.length <= most ? name : `${name.slice(0, head)}…${name.slice(name.length - (most - 1 - head))}`;
  }

  /** Invisible columns, one around each x, that show everything known there. */
  function columns(stops, domain) {
    return stops.map((stop, i) => ({
      ...stop,
      from: i ? (stops[i - 1].x + stop.x) / 2 : domain[0],
      to: i + 1 < stops.length ? (stop.x + stops[i + 1].x) / 2 : domain[1],
    }));
  }
  const columnLayer = (values, domain, scale) => ({
    data: { values },
    params: [{ name: "hover", select: { type: "point", fields: ["x"], on: "pointerover", clear: "pointerout" } }],
    mark: { type: "rect", aria: false, tooltip: { content: "data" }, fill: "var(--ink)" },
    encoding: {
      x: { field: "from", type: "quantitative", scale: { ...scale, domain, nice: false, zero: false } },
      x2: { field: "to" },
      fillOpacity: { condition: { param: "hover", empty: false, value: 0.07 }, value: 0 },
    },
  });
  /** Where x is a layer: whole numbers only, whatever the width. */
  const layerAxis = (count) => ({ title: "depth", format: "d", tickMinStep: 1, tickCount: Math.min(count, 7) });

  /** Lines over depth, one a model. `series`: {metric, dashed, word}; `read(layer)`: {metric: value}. */
  function curves(diagnoses, labels, series, without, logarithmic, title) {
    const most = Math.max(...diagnoses.map((d) => d.layers.length));
    const domain = [-0.4, Math.max(most - 1, 0) + 0.4];
    const rows = [];
    const stops = [];
    for (let x = 0; x < most; x++) {
      const tip = [];
      const names = new Set();
      let massive = null;
      diagnoses.forEach((diagnosis, model) => {
        const layer = diagnosis.layers[x];
        if (!layer) return;
        const left = without && layer.without_massive;
        const tokens = left ? layer.without_massive : layer.tokens;
        names.add(layer.name);
        massive = massive || (diagnoses.length === 1 && layer.massive);
        for (const { metric, dashed, word } of series) {
          const value = tokens[metric];
          const usable = known(value) && !(logarithmic && value <= 0);
          let [low, high, spread] = [null, null, left ? null : layer.spread[metric]];
          if (dashed) spread = null; // one band a model is as many as can be told apart
          if (usable && logarithmic && !left && known(layer.spread.log_hfc_lfc) && metric === "hfc_lfc") {
            // on a logarithmic axis a band is a factor, not a difference, so that it never reaches zero
            const factor = Math.exp(layer.spread.log_hfc_lfc);
            [low, high] = [value / factor, value * factor];
          } else if (usable && known(spread)) {
            [low, high] = [logarithmic ? Math.max(value - spread, value / 10) : value - spread, value + spread];
          }
          rows.push({ x, model, line: `${model} ${metric}`, value: usable ? value : null, low, high, dashed: Boolean(dashed) });
          const about = [diagnoses.length > 1 ? labels[model] : "", word].filter(Boolean).join(", ") || title;
          tip.push([dashed ? "line dashed" : "line", colour(model), about, number(value) + (known(spread) ? ` ± ${number(spread, 2)}` : "")]);
        }
      });
      if (massive && known(massive.input_share)) tip.push(["", "", "inputs with massive tokens", percent(massive.input_share)]);
      if (tip.length) stops.push({ x, tip: [`${x} · ${[...names].join(" / ")}`, tip] });
    }
    const models = diagnoses.map((_, i) => i);
    const paint = { field: "model", type: "nominal", legend: null, scale: { domain: models, range: models.map(colour) } };
    const dash = { field: "dashed", legend: null, scale: { domain: [false, true], range: [[1, 0], [4, 3]] } };
    const drawn = rows.flatMap((row) => [row.value, row.low, row.high]).filter(known);
    const scale = logarithmic ? { type: "log", domain: span(drawn), nice: false } : { zero: false, nice: true };
    const x = { field: "x", type: "quantitative", axis: layerAxis(most), scale: { domain, nice: false, zero: false } };
    const y = {
      field: "value", type: "quantitative", scale, title: null,
      axis: logarithmic ? { format: "~g", tickCount: 5 } : { tickCount: 5 },
    };
    return {
      width: "container", height: 220, data: { values: rows },
      layer: [
        {
          mark: { type: "area", opacity: 0.14, interpolate: "linear" },
          encoding: { x, y: { ...y, field: "low" }, y2: { field: "high" }, fill: paint, detail: { field: "line" } },
        },
        columnLayer(columns(stops, domain), domain, {}),
        {
          mark: { type: "line", strokeWidth: 2, strokeJoin: "round", interpolate: "linear" },
          encoding: { x, y, stroke: paint, strokeDash: dash, detail: { field: "line" } },
        },
        {
          transform: [{ filter: "isValid(datum.value)" }],
          mark: { type: "circle", opacity: 1, interactive: false, aria: false },
          encoding: {
            x, y, fill: paint,
            size: { condition: { param: "hover", empty: false, value: 48 }, value: most > 30 ? 0 : diagnoses.length > 3 ? 10 : 16 },
          },
        },
      ],
    };
  }
  /** Accuracy against the intensity of corruption, one line a model; 0 is clean. */
  function accuracy(diagnoses, labels) {
    const tested = diagnoses.map((d, model) => ({ model, found: d.accuracy })).filter(({ found }) => found);
    if (!tested.length) return null;
    const value = ({ found }, x) => (x ? found.corrupted[x - 1] : found.clean);
    const most = Math.max(...tested.map(({ found }) => found.corrupted.length));
    const domain = [-0.4, most + 0.4];
    const intensities = Array.from({ length: most + 1 }, (_, x) => x);
    const rows = tested.flatMap((one) => intensities.filter((x) => known(value(one, x))).map((x) => ({ x, model: one.model, value: 100 * value(one, x) })));
    const stops = intensities.map((x) => ({
      x, tip: [x ? `intensity ${x}` : "clean", tested.map((one) => ["line", colour(one.model), labels[one.model], percent(value(one, x))])],
    }));
    const models = tested.map(({ model }) => model);
    const paint = { field: "model", type: "nominal", legend: null, scale: { domain: models, range: models.map(colour) } };
    const x = { field: "x", type: "quantitative", axis: { title: "intensity of corruption", format: "d", tickMinStep: 1 }, scale: { domain, nice: false, zero: false } };
    const y = { field: "value", type: "quantitative", title: "accuracy, %", scale: { zero: false, nice: true }, axis: { tickCount: 5 } };
    return {
      width: "container", height: 220, data: { values: rows },
      layer: [
        columnLayer(columns(stops, domain), domain, {}),
        { mark: { type: "line", strokeWidth: 2, strokeJoin: "round" }, encoding: { x, y, stroke: paint } },
        {
          mark: { type: "circle", opacity: 1, interactive: false, aria: false },
          encoding: { x, y, fill: paint, size: { condition: { param: "hover", empty: false, value: 60 }, value: 30 } },
        },
      ],
    };
  }
  function span(values) {
    const low = Math.min(...values), high = Math.max(...values);
    if (!values.length) return [0.1, 10];
    const air = Math.max(1.08, (high / low) ** 0.06);
    return [low / air, high * air];
  }

  const PARTS = { attention: "var(--attention)", mlp: "var(--mlp)", norm: "var(--norm)" };
  const partColour = (part) => PARTS[part] || "var(--other)";

  /** What the parts of every block add to log HFC/LFC. */
  function changes(diagnosis, chosen) {
    const bars = [], sums = [];
    diagnosis.layers.forEach((layer, x) => {
      const found = layer.changes.filter((c) => known(c.log_hfc_lfc));
      if (!found.length) return;
      const total = found.reduce((sum, c) => sum + c.log_hfc_lfc, 0);
      const tip = [`${x} · ${layer.name}`, layer.changes.map((c) => [
        "", partColour(c.part), c.part, signed(c.log_hfc_lfc) + (known(c.spread) ? ` ± ${number(c.spread, 2)}` : ""),
      ])];
      tip[1].push(["tick", "var(--ink)", "sum", signed(total)]);
      found.forEach((c) => bars.push({ x, part: c.part, value: c.log_hfc_lfc, tip, layer: x }));
      sums.push({ x, value: total, tip, layer: x });
    });
    if (!bars.length) return null;
    const parts = [...new Set(bars.map((b) => b.part))];
    const x = layerBand(diagnosis.layers.length, 0.28);
    const cursor = "pointer", tooltip = { content: "data" };
    return {
      width: "container", height: 250,
      layer: [
        {
          data: { values: bars }, mark: { type: "bar", tooltip, cursor, width: sums.length < 6 ? 64 : { band: 1 } },
          encoding: {
            x, y: { field: "value", type: "quantitative", title: "Δ log HFC/LFC", axis: { tickCount: 6, labelExpr: "datum.value == 0 ? '0' : format(datum.value, '+~g')" } },
            fill: { field: "part", type: "nominal", legend: null, scale: { domain: parts, range: parts.map(partColour) } },
            order: { field: "part" },
          },
        },
        { data: { values: [{}] }, mark: { type: "rule", color: "var(--faint)" }, encoding: { y: { datum: 0 } } },
        {
          data: { values: sums }, mark: { type: "tick", thickness: 2.5, color: "var(--ink)", tooltip, cursor, width: sums.length < 6 ? 64 : { band: 1 } },
          encoding: { x, y: { field: "value", type: "quantitative" } },
        },
      ],
    };
  }

  /** Eigenvalues in the plane. `shown`: a list of {head, values, quiet}; head null is the joined H. */
  function plane(shown, width, whole) {
    const points = [], quiet = [];
    for (const { head, values, faint } of shown) {
      values.real.forEach((re, i) => {
        const im = values.imag[i], growth = Math.hypot(1 + re, im);
        const where = head === null ? "all heads joined" : `head ${head}`;
        const tip = [`λ = ${number(re)}${im ? `${im < 0 ? " − " : " + "}${number(Math.abs(im))} i` : ""}`,
          [["", "", "of", where], ["", "", "|1 + λ|", number(growth)]]];
        (faint ? quiet : points).push({ re, im, tip, paint: growth > 1 ? "var(--smooth)" : "var(--negative)" });
      });
    }
    const all = points.concat(quiet);
    const height = Math.round(Math.min(500, width * 0.82));
    const [xs, ys] = square(all, width - 64, height - 46, whole);
    const x = (field) => ({ field, type: "quantitative", title: "Re λ", scale: { domain: xs, nice: false }, axis: { tickCount: 7, grid: true } });
    const y = (field) => ({ field, type: "quantitative", title: "Im λ", scale: { domain: ys, nice: false }, axis: { tickCount: 6 } });
    const circle = Array.from({ length: 361 }, (_, t) => ({ t, x: Math.cos(t * Math.PI / 180) - 1, y: Math.sin(t * Math.PI / 180) }));
    const dots = (values, mark, encoding) => ({
      data: { values }, mark: { type: "circle", clip: true, aria: false, tooltip: { content: "data" }, ...mark },
      encoding: { x: x("re"), y: y("im"), ...encoding },
    });
    const size = points.length > 800 ? 14 : points.length > 250 ? 22 : 34;
    const far = points.reduce((best, p) => (!best || Math.hypot(1 + p.re, p.im) > Math.hypot(1 + best.re, best.im) ? p : best), null);
    return {
      width: width - 64, height: height - 46,
      layer: [
        { data: { values: [{}] }, mark: { type: "rule", color: "var(--rule)" }, encoding: { x: { datum: 0 } } },
        { data: { values: [{}] }, mark: { type: "rule", color: "var(--rule)" }, encoding: { y: { datum: 0 } } },
        {
          data: { values: circle }, mark: { type: "line", clip: true, stroke: "var(--soft)", strokeWidth: 1.5, strokeDash: [5, 4], interactive: false },
          encoding: { x: x("x"), y: y("y"), order: { field: "t" } },
        },
        dots(quiet, { fill: "var(--faint)", opacity: 0.28 }, { size: { value: 12 } }),
        dots(points, { opacity: points.length > 400 ? 0.62 : 0.8 }, {
          size: { value: size },
          fill: { field: "paint", type: "nominal", scale: null },
        }),
        ...(far ? [dots([far], { filled: false, stroke: "var(--ink)", strokeWidth: 1.6, opacity: 1 }, { size: { value: 110 } })] : []),
      ],
    };
  }
  /** Ranges of both axes with the same unit, around the points and the origin, or around the whole circle too. */
  function square(points, width, height, whole) {
    const box = { left: -0.05, right: 0.05, top: 0.05, bottom: -0.05 };
    const take = (re, im) => {
      box.left = Math.min(box.left, re); box.right = Math.max(box.right, re);
      box.bottom = Math.min(box.bottom, im); box.top = Math.max(box.top, im);
    };
    points.forEach((p) => take(p.re, p.im));
    if (whole) { take(-2, 1); take(0, -1); }
    const unit = 1.12 * Math.max((box.right - box.left) / width, (box.top - box.bottom) / height);
    const [cx, cy] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
    return [[cx - unit * width / 2, cx + unit * width / 2], [cy - unit * height / 2, cy + unit * height / 2]];
  }

  const layerBand = (count, paddingInner) => ({
    field: "x", type: "ordinal", title: "depth", axis: { labelAngle: 0 },
    scale: { paddingInner, domain: Array.from({ length: count - 1 }, (_, i) => i + 1) },
  });

  /** Layers by heads: in how many inputs the smoothing eigenvalue dominates. */
  function dominance(diagnosis) {
    const cells = [];
    let heads = 0;
    diagnosis.layers.forEach((layer, x) => {
      const found = layer.dominance;
      if (!found) return;
      const count = Math.max(found.rho_smooth_heads.length, ...found.verdict_heads.map((row) => row.length));
      heads = Math.max(heads, count);
      for (let head = 0; head < count; head++) {
        const said = found.verdict_heads.map((row) => row[head]).filter(Boolean);
        if (!said.length) continue;
        const times = (word) => said.filter((s) => s === word).length;
        const share = times("smooth") / said.length;
        const rough = found.rho_rough_heads.map((row) => row[head]).filter(known);
        const mean = rough.length ? rough.reduce((a, b) => a + b, 0) / rough.length : null;
        cells.push({
          x, head, layer: x, paint: share >= 0.5 ? "var(--smooth)" : "var(--rough)", weight: Math.abs(2 * share - 1),
          tip: [`${x} · ${layer.name}, head ${head}`, [
            ["", "var(--smooth)", "smooth", `${times("smooth")} of ${said.length}`],
            ["", "var(--rough)", "rough", `${times("rough")} of ${said.length}`],
            ...["tie", "undecided"].filter(times).map((word) => ["", "var(--tie)", word, `${times(word)} of ${said.length}`]),
            ["", "", "ρ smooth", number(found.rho_smooth_heads[head])],
            ["", "", "ρ rough, mean", number(mean)],
          ]],
        });
      }
    });
    if (!cells.length) return null;
    const step = Math.max(9, Math.min(26, Math.floor(300 / heads)));
    return {
      width: "container", height: Math.max(2, heads) * step, data: { values: cells },
      encoding: {
        x: { ...layerBand(diagnosis.layers.length), axis: { labelAngle: 0, domain: false, ticks: false }, title: null },
        y: { field: "head", type: "ordinal", title: "head", axis: { minExtent: 40, maxExtent: 40 } },
      },
      layer: [
        { mark: { type: "rect", aria: false, fill: "var(--raised)", stroke: "var(--ground)" } }, // half and half is not missing
        {
          mark: { type: "rect", aria: false, tooltip: { content: "data" }, cursor: "pointer", stroke: "var(--ground)" },
          encoding: {
            fill: { field: "paint", type: "nominal", scale: null },
            fillOpacity: { field: "weight", type: "quantitative", scale: null },
          },
        },
      ],
    };
  }

  /** ρ smooth beside ρ rough of all heads together, layer by layer. */
  function radii(diagnosis) {
    const dots = [], links = [];
    diagnosis.layers.forEach((layer, x) => {
      const found = layer.dominance;
      // what ρ rough was compared with, which is not the raw radius where the norm was taken into H
      const compared = ((found && found.joined_rho_smooth) || []).filter(known);
      const smooth = compared.length ? compared.reduce((a, b) => a + b, 0) / compared.length : layer.spectrum && layer.spectrum.rho_smooth;
      const rough = found && found.rho_rough;
      if (!known(smooth) && !known(rough)) return;
      const said = found ? found.joined_verdict : [];
      const verdict = ["smooth", "rough", "tie"].find((word) => said.length && said.every((s) => s === word));
      const counts = ["smooth", "rough", "tie", "undecided"].map((word) => [said.filter((s) => s === word).length, word]).filter(([n]) => n);
      const sample = found ? found.joined_rho_rough.filter(known) : [];
      const tip = [`${x} · ${layer.name}`, [
        ["round", "var(--smooth)", "ρ smooth", number(smooth)],
        ["diamond", "var(--rough)", "ρ rough", number(rough)],
        ...(sample.length > 1 ? [["", "", "over inputs", `${number(Math.min(...sample), 3)} to ${number(Math.max(...sample), 3)}`]] : []),
        ["", "", "dominates", counts.map(([n, word]) => (counts.length > 1 ? `${word} ${n}` : word)).join(", ") || "–"],
      ]];
      if (known(smooth)) dots.push({ x, value: smooth, kind: "smooth", stroke: "var(--smooth)", fill: "var(--smooth)", tip, layer: x });
      if (known(rough)) dots.push({ x, value: rough, kind: "rough", stroke: "var(--rough)", fill: "var(--ground)", tip, layer: x });
      if (known(smooth) && known(rough)) links.push({ x, from: smooth, to: rough, paint: verdict ? `var(--${verdict})` : "var(--tie)", tip, layer: x });
    });
    if (!dots.length) return null;
    const x = layerBand(diagnosis.layers.length);
    const y = { type: "quantitative", title: "ρ", scale: { zero: false }, axis: { minExtent: 40, maxExtent: 40, tickCount: 5 } };
    const tooltip = { content: "data" }, cursor = "pointer";
    return {
      width: "container", height: 190,
      layer: [
        {
          data: { values: links }, mark: { type: "rule", strokeWidth: 5, opacity: 0.4, tooltip, cursor },
          encoding: {
            x, y: { ...y, field: "from" }, y2: { field: "to" },
            stroke: { field: "paint", type: "nominal", scale: null },
          },
        },
        {
          data: { values: dots }, mark: { type: "point", filled: true, size: 62, opacity: 1, strokeWidth: 2, tooltip, cursor },
          encoding: {
            x, y: { ...y, field: "value" },
            shape: { field: "kind", legend: null, scale: { domain: ["smooth", "rough"], range: ["circle", "diamond"] } },
            stroke: { field: "stroke", type: "nominal", scale: null },
            fill: { field: "fill", type: "nominal", scale: null },
          },
        },
      ],
    };
  }

  const COURSES = [["real", "the blocks themselves", "line", "var(--ink)"], ["simulated", "attention alone, simulated", "line", "var(--smooth)"], ["predicted", "rate by the spectra", "line dotted", "var(--rate)"]];
  const LOWEST = -14;

  /** HFC/LFC over further depth, drawn down to 1e-14; courses fall below what a number holds. */
  function course(extrapolation) {
    const rows = [], at = new Map();
    const add = (kind, x, log) => {
      if (kind !== "predicted") {
        if (!at.has(x)) at.set(x, []);
        const [, label, swatch, paint] = COURSES.find(([name]) => name === kind);
        at.get(x).push([swatch, paint, label, ratio(log)]);
      }
      rows.push({ x, kind, power: known(log) ? log / LOG10 : null, value: known(log) ? 10 ** Math.max(-300, Math.min(300, log / LOG10)) : null });
    };
    for (const kind of ["real", "simulated"]) {
      const found = extrapolation[kind];
      if (found) found.depth.forEach((x, i) => add(kind, x, found.log_hfc_lfc[i]));
    }
    if (!rows.length) return null;
    const powers = rows.map((row) => row.power).filter(known);
    const least = Math.max(LOWEST, Math.min(...powers)), most = Math.max(...powers);
    const air = Math.max(0.04, 0.07 * (most - least));
    const simulated = extrapolation.simulated, rate = extrapolation.predicted_rate;
    if (simulated && known(rate) && rate > 0) {
      const last = simulated.log_hfc_lfc.findLastIndex((log) => known(log) && log / LOG10 >= LOWEST);
      simulated.depth.forEach((x) => {
        const log = simulated.log_hfc_lfc[last] + Math.log(rate) * (x - simulated.depth[last]);
        if (last >= 0 && log / LOG10 <= most + air && log / LOG10 >= least - air) add("predicted", x, log);
      });
    }
    const end = Math.max(...rows.map((row) => row.x), 1);
    const scale = end > 60 ? { type: "symlog", constant: 2 } : {};
    const ticks = end > 60 ? [0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 100000].filter((t) => t <= end) : undefined;
    const stops = columns([...at].sort((a, b) => a[0] - b[0]).map(([x, tip]) => ({ x, tip: [`${number(x)} more blocks`, tip] })), [0, end]);
    const x = { field: "x", type: "quantitative", title: "further blocks", scale: { ...scale, domain: [0, end], nice: false }, axis: { values: ticks, tickCount: 6, format: "d", tickMinStep: 1 } };
    const y = { field: "value", type: "quantitative", title: "HFC/LFC", scale: { type: "log", nice: false, domain: [10 ** (least - air), 10 ** (most + air)] }, axis: { format: "~g", tickCount: 5 } };
    const kinds = COURSES.map(([name]) => name);
    return {
      width: "container", height: 230,
      layer: [
        columnLayer(stops, [0, end], scale),
        {
          data: { values: rows }, mark: { type: "line", clip: true, strokeWidth: 2, interactive: false },
          encoding: {
            x, y,
            stroke: { field: "kind", type: "nominal", legend: null, scale: { domain: kinds, range: COURSES.map((c) => c[3]) } },
            strokeDash: { field: "kind", legend: null, scale: { domain: kinds, range: [[1, 0], [1, 0], [2, 4]] } },
          },
        },
        {
          data: { values: rows.filter((row) => known(row.power) && row.kind !== "predicted") }, mark: { type: "circle", opacity: 1, clip: true, interactive: false },
          encoding: {
            x, y, size: { condition: { param: "hover", empty: false, value: 48 }, value: rows.length > 80 ? 0 : 14 },
            fill: { field: "kind", type: "nominal", legend: null, scale: { domain: kinds, range: COURSES.map((c) => c[3]) } },
          },
        },
      ],
    };
  }

  return { config, known, number, ratio, percent, shorten, colour, partColour, curves, accuracy, changes, plane, dominance, radii, course, COURSES };
})();
