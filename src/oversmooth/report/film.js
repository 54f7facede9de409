"use strict";
// The page's clock: one slider moves every chart. Text from the data only ever enters as text.

(() => {
  const { config, panels, steps, runs } = JSON.parse(document.getElementById("film").textContent);
  const find = (id) => document.getElementById(id);
  const known = (value) => value !== null && value !== undefined;
  const short = (value) => Math.abs(value) >= 1e4 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  const kept = [];
  const views = []; // {metric, kind, run, view}
  let playing = null;

  /** The look of a run that was the newest at a step. */
  function lookAt(run, metric, step) {
    let last = null;
    for (const row of run.rows) {
      if (row.step > step) break;
      if (row[metric]) last = row;
    }
    return last;
  }

  function isLog(panel) {
    const scale = panel.depth.encoding.y.scale;
    return scale.type === "log";
  }

  /** Rectangles of one run: each look lasts until the next. */
  function cells(run, metric) {
    const panel = panels[metric], rows = run.rows.filter((row) => row[metric]), log = isLog(panel), out = [];
    rows.forEach((row, place) => {
      const before = place ? rows[place - 1].step : row.step - 1;
      const end = place + 1 < rows.length ? rows[place + 1].step : 2 * row.step - before;
      row[metric].forEach((value, index) => {
        if (!known(value) || (log && value <= 0)) return;
        const depth = index + panel.first;
        out.push({ from: row.step, to: end, low: depth - 0.5, high: depth + 0.5, shown: log ? Math.log10(value) : value });
      });
    });
    return out;
  }

  function curves(metric, step) {
    const panel = panels[metric], log = isLog(panel), out = [];
    const chosen = [...kept.filter((one) => one !== step).map((one) => [one, true]), [step, false]];
    for (const run of runs) for (const [at, isKept] of chosen) {
      const row = lookAt(run, metric, at);
      if (!row) continue;
      row[metric].forEach((value, index) => {
        if (!known(value) || (log && value <= 0)) return;
        out.push({ run: run.name, line: `${run.name} ${at}`, depth: index + panel.first, value, kept: isKept, step: row.step });
      });
    }
    return out;
  }

  function last(metric) {
    const log = isLog(panels[metric]), out = [];
    for (const run of runs) for (const row of run.rows) {
      const values = row[metric];
      if (!values || !known(values[values.length - 1]) || (log && values[values.length - 1] <= 0)) continue;
      out.push({ run: run.name, step: row.step, value: values[values.length - 1] });
    }
    return out;
  }

  async function draw(id, spec) {
    const full = { $schema: "https://vega.github.io/schema/vega-lite/v6.json", autosize: { type: "fit-x", contains: "padding" }, ...spec, config };
    const result = await vegaEmbed(find(id), full, { renderer: "svg", actions: false, ast: true, defaultStyle: false, logLevel: 1 });
    return result.view;
  }

  function now() { return steps[Number(find("time").value)]; }

  function show() {
    const step = now();
    find("step").textContent = step.toLocaleString("en");
    find("time").setAttribute("aria-valuetext", `step ${step}`);
    for (const { metric, kind, view } of views) {
      if (kind === "depth") view.data("curves", curves(metric, step)).runAsync();
      else view.data("at", [{ step }]).runAsync();
    }
    document.body.dataset.step = String(step);
  }

  function scaleOf(metric) {
    const scale = panels[metric].heat[0].layer[0].encoding.color.scale, box = find(`scale-${metric}`);
    const [low, high] = scale.domain.map((value) => short(isLog(panels[metric]) ? 10 ** value : value));
    const bar = document.createElement("span");
    bar.className = "bar";
    for (const colour of scale.range) {
      const part = document.createElement("i");
      part.style.background = colour;
      bar.append(part);
    }
    box.replaceChildren(low, bar, high);
  }

  function play() {
    const slider = find("time"), button = find("play");
    if (playing) {
      clearInterval(playing);
      playing = null;
      button.textContent = "Play";
      return;
    }
    if (Number(slider.value) === steps.length - 1) slider.value = "0";
    button.textContent = "Pause";
    playing = setInterval(() => {
      if (Number(slider.value) >= steps.length - 1) { play(); return; }
      slider.value = String(Number(slider.value) + 1);
      show();
    }, Math.max(40, 6000 / steps.length));
    show();
  }

  async function main() {
    for (const metric of Object.keys(panels)) {
      const panel = panels[metric];
      scaleOf(metric);
      for (const [index, run] of runs.entries()) {
        const view = await draw(`heat-${metric}-${index}`, { ...panel.heat[index], datasets: { cells: cells(run, metric), at: [] } });
        views.push({ metric, kind: "heat", view });
      }
      const depth = await draw(`depth-${metric}`, { ...panel.depth, datasets: { curves: curves(metric, now()) } });
      views.push({ metric, kind: "depth", view: depth });
      const time = await draw(`time-${metric}`, { ...panel.time, datasets: { last: last(metric), at: [] } });
      views.push({ metric, kind: "time", view: time });
    }
    find("time").addEventListener("input", show);
    find("play").addEventListener("click", play);
    find("keep").addEventListener("click", () => {
      if (!kept.includes(now())) kept.push(now());
      find("clear").hidden = false;
      show();
    });
    find("clear").addEventListener("click", () => {
      kept.length = 0;
      find("clear").hidden = true;
      show();
    });
    show();
    document.body.dataset.ready = "yes";
  }
  main();
})();
