// Which tokens of one input are similar: the chosen token with all others, all pairs, and both by depth and by head.

const bytes = (code) => Uint8Array.from(atob(code), (letter) => letter.charCodeAt(0));
const decoded = new Map();
const looked = { depth: null, token: null };
let one = null;

function lookAt(diagnosis) {
  const box = find("tokens-body");
  if (!box) return;
  one = diagnosis.one_input;
  find("tokens-missing").hidden = Boolean(one);
  box.hidden = !one;
  find("tokens-what").textContent = "";
  if (!one) return;
  if (!decoded.has(one)) decoded.set(one, { cosines: one.similarity.map(bytes), heads: one.received.map(bytes) });
  const last = one.similarity.length - 1, shown = one.aggregated ? ` ${one.aggregated}.` : "";
  find("tokens-what").textContent = `Input: ${one.what}; ${one.tokens.toLocaleString("en")} tokens.${shown}`;
  find("tokens-depth").max = last;
  if (!known(looked.depth) || looked.depth > last) looked.depth = last;
  if (!known(looked.token) || looked.token >= one.groups) looked.token = one.grid ? one.leading + Math.floor(one.grid[0] / 2) * one.grid[1] + Math.floor(one.grid[1] / 2) : Math.min(1, one.groups - 1);
  drawTokens();
}

function cosine(depth, i, j) {
  if (i === j) return 1;
  const [low, high] = i < j ? [i, j] : [j, i];
  return decoded.get(one).cosines[depth][low * (2 * one.groups - low - 1) / 2 + high - low - 1] / 127 - 1;
}
const row = (depth, token) => Array.from({ length: one.groups }, (_, other) => cosine(depth, token, other));

/** The colours of the page as numbers, which a canvas needs. */
function paints() {
  const style = getComputedStyle(document.documentElement), context = make("canvas").getContext("2d");
  const numbers = (name) => {
    context.fillStyle = style.getPropertyValue(`--${name}`).trim();
    return [1, 3, 5].map((at) => parseInt(context.fillStyle.slice(at, at + 2), 16));
  };
  return { middle: numbers("map-none"), high: numbers("map-more"), low: numbers("map-below"), ink: style.getPropertyValue("--ink").trim() };
}
/** From −1 through 0 to 1. */
function paint(value, { middle, high, low }) {
  const end = value < 0 ? low : high, part = Math.min(1, Math.abs(value));
  return middle.map((from, i) => Math.round(from + (end[i] - from) * part));
}

/** A ground, and black or white on it, whichever is easier to read. */
function readable(ground) {
  const [r, g, b] = ground.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return { "--cell": `rgb(${ground.join(" ")})`, "--on-cell": light > 0.179 ? "black" : "white" };
}

/** Cells of an image: special tokens in a row above its patches. */
function cells(side) {
  const [rows, columns] = one.grid, top = one.leading ? 1.4 : 0, unit = side / columns;
  return {
    height: Math.ceil((rows + top) * unit), unit, top: top * unit,
    at: (token) => (token < one.leading ? [token * unit, 0] : [((token - one.leading) % columns) * unit, (Math.floor((token - one.leading) / columns) + top) * unit]),
  };
}
function drawImage(canvas, values, side, colours, { picture = false, chosen = null } = {}) {
  const { height, unit, top, at } = cells(side), sharp = Math.max(1, devicePixelRatio || 1);
  canvas.width = side * sharp; canvas.height = height * sharp;
  canvas.style.width = `${side}px`; canvas.style.aspectRatio = `${side} / ${height}`;
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  context.imageSmoothingEnabled = false;
  if (picture && one.picture) {
    const { width, height: lines, pixels } = one.picture, raw = bytes(pixels), small = make("canvas", { width, height: lines });
    const image = small.getContext("2d").createImageData(width, lines);
    for (let i = 0; i < width * lines; i++) image.data.set([raw[3 * i], raw[3 * i + 1], raw[3 * i + 2], 255], 4 * i);
    small.getContext("2d").putImageData(image, 0, 0);
    context.drawImage(small, 0, top, side, height - top);
  }
  values.forEach((value, token) => {
    const [x, y] = at(token);
    context.globalAlpha = picture && one.picture && token >= one.leading ? 0.66 : 1;
    context.fillStyle = `rgb(${paint(value, colours).join(" ")})`;
    context.fillRect(x, y, unit - (unit > 8 ? 1 : 0), unit - (unit > 8 ? 1 : 0));
  });
  context.globalAlpha = 1;
  if (picture && one.leading) {
    context.fillStyle = colours.ink; context.font = "12px sans-serif"; context.textBaseline = "middle";
    context.fillText(special(), one.leading * unit + 6, unit / 2);
  }
  if (known(chosen)) {
    const [x, y] = at(chosen);
    context.lineWidth = unit > 16 ? 3 : 1.5; context.strokeStyle = colours.ink;
    context.strokeRect(x + 1, y + 1, unit - 3, unit - 3);
  }
}
/** Rows of numbers as a strip of colours; where there is no number, none. */
function drawRows(canvas, rows, colours) {
  const width = rows[0].length;
  canvas.width = width; canvas.height = rows.length;
  const context = canvas.getContext("2d"), image = context.createImageData(width, rows.length);
  rows.forEach((values, y) => values.forEach((value, x) => known(value) && image.data.set([...paint(value, colours), 255], 4 * (y * width + x))));
  context.putImageData(image, 0, 0);
}

const special = () => (one.leading === 1 ? "class token" : "special tokens");
/** Special tokens are set apart from the others by a gap. */
const gap = () => (one.leading ? Math.ceil(one.groups / 50) : 0);
const apart = (values) => [...values.slice(0, one.leading), ...Array(gap()).fill(null), ...values.slice(one.leading)];
const nameOf = (token) => {
  if (one.grid) {
    if (token < one.leading) return one.leading === 1 ? "the class token" : `special token ${token}`;
    const patch = token - one.leading;
    return `patch in row ${Math.floor(patch / one.grid[1]) + 1}, column ${patch % one.grid[1] + 1}`;
  }
  return `token ${token}${one.labels[token] ? ` “${one.labels[token].trim()}”` : ""}`;
};
const rounded = (value) => value.toFixed(2).replace("-", "−");

function drawTokens() {
  if (!one) return;
  const colours = paints(), { depth, token } = looked, values = row(depth, token), last = one.similarity.length - 1;
  find("tokens-depth").value = depth;
  find("tokens-depth-said").textContent = `${depth} of ${last}`;
  find("tokens-map-title").textContent = `Cosine with ${nameOf(token)}`;
  const map = find("tokens-map");
  if (one.grid) {
    const canvas = map.querySelector("canvas") || make("canvas", { "aria-hidden": "true" });
    if (!canvas.parentElement) map.replaceChildren(canvas);
    drawImage(canvas, values, Math.min(360, map.clientWidth || 300), colours, { picture: true, chosen: token });
  } else {
    map.replaceChildren(...values.map((value, other) => make("span", {
      class: other === token ? "chosen" : false, "data-token": other, ...readable(paint(value, colours)),
    }, one.labels[other] || String(other))));
  }
  map.setAttribute("aria-label", `Tokens at depth ${depth}; arrow keys choose one, now ${nameOf(token)}`);
  const every = Array.from({ length: one.groups }, (_, i) => row(depth, i));
  drawRows(find("tokens-pairs"), apart(every.map(apart)).map((values) => values ?? Array(one.groups + gap()).fill(null)), colours);
  find("tokens-pairs-note").textContent = one.leading ? `${special()} at the top and left` : "";
  const sum = (list) => list.reduce((total, value) => total + value, 0), others = values.filter((_, other) => other !== token);
  const mean = (sum(every.map(sum)) - one.groups) / (one.groups * (one.groups - 1));
  find("tokens-pairs").setAttribute("aria-label", `Cosines of all pairs at depth ${depth}; their mean is ${rounded(mean)}`);
  let nearest = -1;
  values.forEach((value, other) => { if (other !== token && (nearest < 0 || value > values[nearest])) nearest = other; });
  find("tokens-finding").textContent = `Depth ${depth}, ${nameOf(token)}: mean cosine with the others ${rounded(sum(others) / others.length)}, `
    + `most similar: ${nameOf(nearest)} (${rounded(values[nearest])}). Mean over all pairs: ${rounded(mean)}.`;
  drawByDepth(colours);
  drawHeads(colours);
}

function thumb(label, pressed, canvas, action) {
  const button = make("button", { type: "button", class: "thumb", ...(known(pressed) ? { "aria-pressed": String(pressed) } : {}) }, canvas, make("span", {}, label));
  if (action) button.addEventListener("click", action);
  return button;
}
function strips(rows, labels, colours, current) {
  const canvas = make("canvas", { role: "img", "aria-label": labels.join(", "), class: "strip-rows" });
  drawRows(canvas, rows, colours);
  canvas.style.height = `${Math.min(20, Math.max(8, 320 / rows.length)) * rows.length}px`;
  const shown = labels.map((label, i) => (labels.length > 16 && i % Math.ceil(labels.length / 16) ? "" : label));
  return [make("div", { class: "strip-labels", "aria-hidden": "true" }, ...shown.map((label, i) => make("span", { class: i === current ? "current" : false }, label))), canvas];
}
function drawByDepth(colours) {
  const box = find("tokens-by-depth"), depths = one.similarity.map((_, depth) => depth), focus = box.contains(document.activeElement);
  box.classList.toggle("rows", !one.grid);
  if (one.grid) {
    box.replaceChildren(...depths.map((depth) => {
      const canvas = make("canvas", { "aria-hidden": "true" });
      drawImage(canvas, row(depth, looked.token), 76, colours);
      return thumb(`depth ${depth}`, depth === looked.depth, canvas, () => { looked.depth = depth; drawTokens(); remember(); });
    }));
    if (focus) box.querySelector("[aria-pressed=true]")?.focus();
  } else box.replaceChildren(...strips(depths.map((depth) => row(depth, looked.token)), depths.map((depth) => `depth ${depth}`), colours, looked.depth));
}
function drawHeads(colours) {
  const block = Math.max(1, looked.depth), seen = decoded.get(one).heads[block - 1], box = find("tokens-heads");
  find("tokens-heads-box").hidden = !seen?.length;
  if (!seen?.length) return;
  const count = seen.length / one.groups, all = one.received_most[block - 1];
  // Special tokens often receive most of it, so the others set the scale and theirs is written out.
  const most = Math.max(1, ...seen.filter((_, i) => i % one.groups >= one.leading)) / 255;
  find("tokens-heads-title").textContent = `Attention received by each token, by head of block ${block} (darkest: ${(most * all).toPrecision(2)})`;
  const rows = Array.from({ length: count }, (_, head) => Array.from(seen.subarray(head * one.groups, (head + 1) * one.groups), (value) => value / 255 / most));
  box.classList.toggle("rows", !one.grid);
  if (!one.grid) { box.replaceChildren(...strips(rows, rows.map((_, head) => `head ${head}`), colours, null)); return; }
  box.replaceChildren(...rows.map((values, head) => {
    const canvas = make("canvas", { role: "img", "aria-label": `Attention received, head ${head}` });
    drawImage(canvas, values, 76, colours);
    const received = values.slice(0, one.leading).map((value) => (value * most * all).toPrecision(2)).join(", ");
    return make("div", { class: "thumb" }, canvas, make("span", {}, `head ${head}`), ...(received ? [make("span", {}, `${special()} ${received}`)] : []));
  }));
}

function chooseToken(token) {
  looked.token = Math.min(one.groups - 1, Math.max(0, token));
  looked.chosen = true;
  drawTokens();
  remember();
}
listen("tokens-depth", "input", (event) => { looked.depth = Number(event.target.value); drawTokens(); remember(); });
listen("tokens-map", "click", (event) => {
  const span = event.target.closest("[data-token]"), canvas = event.target.closest("canvas");
  if (span) chooseToken(Number(span.dataset.token));
  if (!canvas) return;
  const box = canvas.getBoundingClientRect(), { unit, at } = cells(box.width);
  const x = event.clientX - box.left, y = event.clientY - box.top;
  for (let token = 0; token < one.groups; token++) {
    const [left, top] = at(token);
    if (x >= left && x < left + unit && y >= top && y < top + unit) chooseToken(token);
  }
});
listen("tokens-pairs", "click", (event) => {
  const box = event.target.getBoundingClientRect();
  const place = Math.floor((event.clientY - box.top) / box.height * (one.groups + gap()));
  chooseToken(place < one.leading ? place : Math.max(one.leading, place - gap()));
});
listen("tokens-map", "keydown", (event) => {
  const across = one.grid ? one.grid[1] : 1;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
  if (!step) return;
  event.preventDefault();
  chooseToken(looked.token + step);
});
// Colours of a canvas do not follow the page's by themselves: on paper they are those of a light ground.
for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", drawTokens);
