// The clock of a training report: one slider moves every chart, and runs can be hidden.

const snapshots = await read("diagnoses"), { steps, runs } = snapshots;
const { panels, keys, first } = await read("drawn");
const short = (value) => (Math.abs(value) >= 1e4 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(1) : String(Number(value.toPrecision(3)))).replace("-", "−").replace("e-", "e−");
const said = (metric, value) => (panels[metric].percent ? `${Math.round(100 * value)}%`.replace("-", "−") : metric === "cos" ? value.toFixed(2).replace("-", "−") : short(value));
const drawable = (metric, value) => known(value) && !(panels[metric].log && value <= 0);
const shownRuns = () => runs.filter(({ name }) => !isHidden("run", name));
const kept = new Set();
let playing = null;
const now = () => steps[Number(find("time").value)];

/** The snapshot of a run that was the newest at a step. */
function snapshotAt(run, metric, step) {
  let last = null;
  for (const row of run.rows) {
    if (row.step > step) break;
    if (row[metric]) last = row;
  }
  return last;
}

/** Rectangles of one run: each snapshot reaches half the way to its neighbours. */
function cells(run, metric) {
  const { log, from } = panels[metric], rows = run.rows.filter((row) => row[metric]), out = [];
  rows.forEach((row, place) => {
    const half = (other) => (rows.length > 1 ? (row.step + (rows[other] ?? row).step) / 2 : row.step + (other - place) / 2);
    const begin = half(place - 1), end = half(place + 1);
    row[metric].forEach((value, index) => {
      if (!drawable(metric, value)) return;
      const depth = index + from, title = `step ${row.step.toLocaleString("en")}, depth ${depth}`;
      out.push({ step: row.step, from: begin, to: end, low: depth - 0.5, high: depth + 0.5, shown: log ? Math.log10(value) : value, title, tip: [[runs.indexOf(run), said(metric, value)]] });
    });
  });
  return out;
}

function curves(metric) {
  const step = now(), out = [];
  const chosen = [...[...kept].filter((one) => one !== step).map((one) => [one, true]), [step, false]];
  for (const run of shownRuns()) for (const [at, isKept] of chosen) {
    const row = snapshotAt(run, metric, at);
    if (!row) continue;
    row[metric].forEach((value, index) => {
      if (!drawable(metric, value)) return;
      const depth = index + panels[metric].from, title = `depth ${depth}, step ${row.step.toLocaleString("en")}`;
      out.push({ run: run.name, line: `${run.name} ${at}`, depth, value, kept: isKept, step: row.step, title, tip: [[runs.indexOf(run), said(metric, value)]] });
    });
  }
  return out;
}

function last(metric) {
  const out = [];
  for (const run of shownRuns()) for (const row of run.rows) {
    const value = row[metric]?.at(-1);
    if (!drawable(metric, value)) continue;
    out.push({ run: run.name, step: row.step, value, title: `step ${row.step.toLocaleString("en")}`, tip: [[runs.indexOf(run), said(metric, value)]] });
  }
  return out;
}
/** What is written at the ends of lines, far enough from one another to be read. */
function ends(metric) {
  const { log, time } = panels[metric], scale = log ? Math.log : (value) => value;
  const [low, high] = time.layer.find(({ encoding }) => encoding.y).encoding.y.scale.domain.map(scale), least = 0.07 * (high - low);
  const rows = shownRuns().map(({ name }) => last(metric).filter(({ run }) => run === name).at(-1)).filter(Boolean);
  let below = -Infinity;
  return rows.sort((a, b) => a.value - b.value).map(({ run, step, value }) => {
    below = Math.max(scale(value), below + least);
    return { run, step, value: log ? Math.exp(below) : below, said: said(metric, value) };
  });
}

const DATA = {
  heat: (metric, run) => ({ cells: cells(runs[run], metric), at: [{ step: now() }] }),
  depth: (metric) => ({ curves: curves(metric) }),
  time: (metric) => ({ last: last(metric), at: [{ step: now() }], ...(metric === first ? { ends: ends(metric) } : {}) }),
};
const places = [...document.querySelectorAll(".chart[data-kind]")];
const described = ({ kind, metric, run }) => `${panels[metric].title}${runs.length > 1 && kind === "heat" ? ` of ${runs[run].name}` : ""}: ${{ heat: "depth over time", depth: "over depth, at the chosen step", time: "after the last block, over time" }[kind]}; the table has the ends`;
async function put(element) {
  const { kind, metric, run } = element.dataset, datasets = DATA[kind](metric, Number(run));
  const spec = { ...(kind === "heat" ? panels[metric].heat[Number(run)] : panels[metric][kind]), datasets };
  await draw(element, { spec, tips: keys, described: described(element.dataset) }, "", {}, (datum) => {
    const step = kind === "depth" ? null : datum?.step;
    if (known(step)) go(step);
  });
  const entry = drawn.get(element);
  if (entry) entry.rows = (datasets.cells || datasets.curves || datasets.last).map(({ tip: _, title: __, ...row }) => row);
}

/** Move to the newest step that is not after one. */
function go(step) {
  const place = steps.findLastIndex((one) => one <= step);
  find("time").value = String(Math.max(0, place));
  show();
  remember();
}

function show() {
  const step = now();
  find("step").textContent = step.toLocaleString("en");
  find("time").setAttribute("aria-valuetext", `step ${step}`);
  find("clear").hidden = !kept.size;
  for (const element of places) {
    const view = drawn.get(element)?.result?.view, { kind, metric, run } = element.dataset;
    if (kind === "depth") for (const caption of [element.closest("figure").querySelector(".beside")]) caption.textContent = `step ${[step, ...[...kept].filter((one) => one !== step)].map((one) => one.toLocaleString("en")).join(", ")}`;
    if (!view) continue;
    if (kind === "heat") { view.data("at", [{ step }]).runAsync(); continue; }
    for (const [name, rows] of Object.entries(DATA[kind](metric, Number(run)))) view.data(name, rows);
    view.runAsync();
  }
  document.body.dataset.step = String(step);
}

function scaleOf(metric) {
  const { domain } = panels[metric].heat[0].layer[0].encoding.color.scale;
  const [low, high] = domain.map((value) => said(metric, panels[metric].log ? 10 ** value : value));
  find(`scale-${metric}`).replaceChildren(low, make("i", { class: "ramp", "aria-hidden": "true" }), high);
}

function play() {
  const slider = find("time"), button = find("play");
  if (playing) {
    clearInterval(playing);
    playing = null;
    button.textContent = "Play";
    remember();
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

function hideMaps() {
  legend("runs-legend", runs.length > 1 ? keys : []);
  for (const element of places.filter((one) => one.dataset.kind === "heat")) element.closest("figure").hidden = isHidden("run", runs[Number(element.dataset.run)].name);
}
let moved = null;
redraw = (why) => {
  if (why !== "size") { hideMaps(); show(); return; }
  const figure = enlarged?.figure ?? moved; // the one that goes into the dialog, or comes back from it
  moved = enlarged?.figure ?? null;
  if (figure) put(figure.querySelector(".chart[data-kind]")).then(show);
};
remember = () => putInAddress({
  step: now() === steps.at(-1) ? "" : now(), kept: [...kept].join(","), off: [...(hidden.get("run") || [])].join("|"),
});
function recall() {
  const view = viewInAddress(), step = Number(view.get("step"));
  kept.clear();
  for (const one of (view.get("kept") || "").split(",").map(Number)) if (one && steps.includes(one)) kept.add(one);
  find("time").value = String(view.get("step") && steps.includes(step) ? steps.indexOf(step) : steps.length - 1);
  hidden.clear();
  for (const name of (view.get("off") || "").split("|").filter((one) => runs.some((run) => run.name === one))) hide("run", name, true);
}

listen("time", "input", show);
listen("time", "change", () => remember());
listen("play", "click", play);
listen("keep", "click", () => { kept.add(now()); show(); remember(); });
listen("clear", "click", () => { kept.clear(); show(); remember(); });
offer(find("training-data"), "training.json", snapshots);
async function open() {
  recall();
  hideMaps();
  for (const metric of Object.keys(panels)) scaleOf(metric);
  for (const element of places) await put(element);
  show();
  markWide();
  document.body.dataset.ready = "yes";
}
addEventListener("hashchange", () => { if (!anchors()) { recall(); hideMaps(); show(); } });
open();
