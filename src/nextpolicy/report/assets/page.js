// Draws the curves and sorts the tables. Everything else on the page is plain HTML and works without scripts.
const data = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set(); // indices of the hidden variants
let showMembers = true;

const MARGIN = { left: 46, right: 12, top: 20, bottom: 30 };
const NAMED = { width: 290, curves: 4, letters: 16 }; // curves are named at their ends if they are few and there is room
const COLOURS = 8;
const colour = (variant) => `--c: var(--c${data.slots[variant] % COLOURS})`;
const dashes = (variant) => (data.slots[variant] < COLOURS ? "none" : "5 3"); // a colour's second use
const stepsAt = (series, point) => (series.x[point] + 1) * series.p; // at the end of the round

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return +(value / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return +(value / 1e3).toPrecision(3) + "k";
  return size !== 0 && size < 1e-3 ? value.toExponential(1) : String(+value.toPrecision(4));
}

/** About `count` round numbers between low and high; powers of ten on a logarithmic axis, with steps between if it is short. */
function ticks(low, high, count, log) {
  if (log) {
    const from = Math.floor(Math.log10(low)), to = Math.floor(Math.log10(high) + 1e-9);
    const every = Math.max(1, Math.ceil((to - from) / count)), found = [];
    const within = high / low < 30 ? [1, 2, 5] : high / low < 300 ? [1, 3] : [1]; // steps within a decade
    for (let power = from; power <= to; power += every) for (const m of within) found.push(+(m * 10 ** power).toPrecision(3));
    return found.filter((value) => value >= low && value <= high);
  }
  const raw = (high - low) / count, base = 10 ** Math.floor(Math.log10(raw));
  const step = base * [1, 2, 5, 10].find((multiple) => multiple * base >= raw);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high + step * 1e-9; n++) found.push(+(n * step).toPrecision(12));
  return found;
}

/** Places moved as little as possible so that all are at least `gap` apart, in their order. */
function spread(places, gap) {
  const blocks = [];
  for (const { y, i } of places.map((y, i) => ({ y, i })).sort((a, b) => a.y - b.y)) {
    let block = { y, of: [i] }; // y: middle
    for (let last = blocks.at(-1); last && block.y - last.y < (gap * (block.of.length + last.of.length)) / 2; last = blocks.at(-1)) {
      blocks.pop();
      const all = [...last.of, ...block.of];
      block = { y: (last.y * last.of.length + block.y * block.of.length) / all.length, of: all };
    }
    blocks.push(block);
  }
  const moved = [];
  for (const { y, of } of blocks) of.forEach((i, n) => { moved[i] = y + gap * (n - (of.length - 1) / 2); });
  return moved;
}

/** One chart of curves over environment steps, with pointer and arrow keys. */
class Chart {
  constructor(holder) {
    const { env, panel } = holder.dataset;
    this.holder = holder;
    this.environment = data.environments[env];
    this.panel = data.panels[panel];
    this.all = this.environment.panels[panel];
    this.tip = document.createElement("output");
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.cursor = null; // {series, point}
    holder.addEventListener("pointermove", (event) => this.point(event));
    holder.addEventListener("pointerleave", () => this.select(null));
    holder.addEventListener("blur", () => this.select(null));
    holder.addEventListener("keydown", (event) => this.key(event));
  }

  draw() {
    this.cursor = null;
    this.visible = this.all.filter((s) => !hidden.has(s.v) && (showMembers || s.m < 0 || !this.hasMean(s.v)));
    this.holder.replaceChildren();
    if (!this.visible.length) {
      const note = document.createElement("div");
      note.className = "empty";
      note.textContent = this.all.length ? "all variants are switched off" : "nothing to show for these variants";
      this.holder.append(note);
      return;
    }
    const width = this.holder.clientWidth, height = this.holder.clientHeight;
    this.root = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, this.holder);
    const names = this.visible.filter((s) => s.m < 0).map((s) => ({ words: data.variants[s.v], value: s.y.at(-1), style: colour(s.v) }));
    const letters = Math.max(0, ...names.map((name) => name.words.length));
    const named = names.length > 0 && width >= NAMED.width && names.length <= NAMED.curves && letters <= NAMED.letters;
    if (this.panel.line !== undefined) names.push({ words: this.panel.line_label, value: this.panel.line, style: "--c: var(--ink)" });
    this.right = named ? 12 + 7 * Math.max(...names.map((name) => name.words.length)) : MARGIN.right;
    this.scale(width, height);
    this.axes(width, height, named);
    this.lines = this.visible.map((s) => this.line(s));
    if (named) this.names(names, width);
    this.dot = svg("circle", { r: 4.5, visibility: "hidden" }, this.root);
    this.holder.append(this.tip);
  }

  hasMean(variant) {
    return this.all.some((s) => s.v === variant && s.m < 0);
  }

  scale(width, height) {
    let low = Infinity, high = -Infinity;
    for (const s of this.visible) for (const y of s.y) { low = Math.min(low, y); high = Math.max(high, y); }
    const log = this.panel.log;
    if (this.panel.line !== undefined) { low = Math.min(low, this.panel.line); high = Math.max(high, this.panel.line); }
    if (log) { low *= 0.8; high *= 1.25; } else {
      const room = (high - low || Math.abs(high) || 1) * 0.05;
      low -= room; high += room;
    }
    this.low = low; this.high = high;
    const total = this.environment.steps, f = log ? Math.log : (y) => y;
    const inner = { width: width - MARGIN.left - this.right, height: height - MARGIN.top - MARGIN.bottom };
    this.x = (steps) => MARGIN.left + (steps / total) * inner.width;
    this.y = (value) => MARGIN.top + (1 - (f(value) - f(low)) / (f(high) - f(low))) * inner.height;
  }

  axes(width, height, named) {
    const right = width - this.right, bottom = height - MARGIN.bottom;
    for (const value of ticks(this.low, this.high, height > 150 ? 5 : 4, this.panel.log)) {
      const y = this.y(value);
      svg("line", { x1: MARGIN.left, x2: right, y1: y, y2: y, class: "grid-line" }, this.root);
      svg("text", { x: MARGIN.left - 5, y: y + 4, "text-anchor": "end" }, this.root, short(value));
    }
    for (const steps of ticks(0, this.environment.steps, 4, false)) {
      svg("text", { x: this.x(steps), y: bottom + 14, "text-anchor": "middle", class: "x-tick" }, this.root, short(steps));
    }
    svg("text", { x: (MARGIN.left + right) / 2, y: height - 2, "text-anchor": "middle" }, this.root, "environment steps");
    svg("text", { x: 2, y: 11, class: "y-label" }, this.root, this.panel.label);
    if (this.panel.line !== undefined) {
      const y = this.y(this.panel.line);
      svg("line", { x1: MARGIN.left, x2: right, y1: y, y2: y, class: "reference" }, this.root);
      const under = y + 12 < bottom;
      if (!named) svg("text", { class: "over", x: MARGIN.left + 4, y: under ? y + 12 : y - 4 }, this.root, this.panel.line_label);
    }
  }

  /** The name of each mean, and of the reference line, at its end. */
  names(names, width) {
    const ends = spread(names.map((name) => this.y(name.value)), 12);
    names.forEach(({ words, style }, i) => {
      svg("text", { x: width - this.right + 5, y: ends[i] + 4, class: "name", style }, this.root, words);
    });
  }

  line(s) {
    const at = s.x.map((_, i) => `${this.x(stepsAt(s, i)).toFixed(1)},${this.y(s.y[i]).toFixed(1)}`);
    const single = s.m >= 0; // faint if there are many, so that the mean stays visible
    if (this.panel.dots) return svg("path", { d: `M${at.join("h0M")}h0`, class: "dots", style: colour(s.v) }, this.root);
    const points = at.join(" ");
    const faint = single ? `; opacity: ${this.hasMean(s.v) ? Math.min(0.5, 6 / this.visible.length) : 0.7}` : "";
    const attributes = { points, class: single ? "member" : "mean", style: colour(s.v) + faint, "stroke-dasharray": dashes(s.v) };
    return svg("polyline", attributes, this.root);
  }

  /** The point nearest to the pointer. */
  point(event) {
    if (!this.visible.length) return;
    const box = this.holder.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    let best = null, nearest = 40 * 40; // pixels
    this.visible.forEach((s, series) => {
      for (let point = 0; point < s.x.length; point++) {
        const distance = (this.x(stepsAt(s, point)) - x) ** 2 + (this.y(s.y[point]) - y) ** 2;
        if (distance < nearest) { nearest = distance; best = { series, point }; }
      }
    });
    this.select(best);
  }

  key(event) {
    const at = this.cursor, many = this.visible ? this.visible.length : 0;
    if (event.key === "Escape") return this.select(null);
    const along = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key] || 0;
    const across = { ArrowUp: -1, ArrowDown: 1 }[event.key] || 0;
    if (!many || !(along || across)) return;
    event.preventDefault();
    if (!at) return this.select({ series: many - 1, point: this.visible[many - 1].x.length - 1 });
    const series = (at.series + across + many) % many, next = this.visible[series];
    let point = Math.min(Math.max(at.point + along, 0), next.x.length - 1);
    if (across) { // stay at the same number of steps
      const steps = stepsAt(this.visible[at.series], at.point), away = (i) => Math.abs(stepsAt(next, i) - steps);
      point = next.x.reduce((best, _, i) => (away(i) < away(best) ? i : best), 0);
    }
    this.select({ series, point });
  }

  select(cursor) {
    this.cursor = cursor;
    if (!this.visible || !this.visible.length) return;
    this.tip.hidden = !cursor;
    this.dot.setAttribute("visibility", cursor ? "visible" : "hidden");
    this.lines.forEach((line, i) => {
      line.classList.toggle("lit", cursor !== null && cursor.series === i);
      line.classList.toggle("dim", cursor !== null && cursor.series !== i);
    });
    if (!cursor) return;
    const s = this.visible[cursor.series], round = s.x[cursor.point], value = s.y[cursor.point];
    const at = stepsAt(s, cursor.point), x = this.x(at), y = this.y(value);
    this.dot.setAttribute("cx", x);
    this.dot.setAttribute("cy", y);
    this.dot.setAttribute("style", colour(s.v));
    const who = s.m < 0 ? `mean of ${s.s} seed${s.s === 1 ? "" : "s"}` : `member ${s.m}, seed ${s.s}`;
    const steps = at.toLocaleString("en");
    this.tip.textContent = `${data.variants[s.v]}, ${who}: round ${round} (${steps} steps), ${this.panel.label} ${short(value)}`;
    const right = x > this.holder.clientWidth / 2;
    this.tip.style.cssText = `top:${Math.max(0, Math.min(y - 20, this.holder.clientHeight - 60))}px;` +
      (right ? `right:${this.holder.clientWidth - x + 12}px` : `left:${x + 12}px`);
  }
}

// Curves are drawn when they scroll near the window, and again when its size or the switches change.
const charts = new Map();
function begin(holder) {
  if (charts.has(holder)) return;
  charts.set(holder, new Chart(holder));
  sizes.observe(holder); // reports immediately, which draws it
}
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) begin(entry.target);
}, { rootMargin: "300px" });
const sizes = new ResizeObserver((entries) => entries.forEach((entry) => charts.get(entry.target).draw()));
document.querySelectorAll(".chart").forEach((holder) => near.observe(holder));
// Printing: draw all curves now, because no observer reports before the page is printed.
function drawAll() {
  document.querySelectorAll(".chart").forEach((holder) => { begin(holder); charts.get(holder).draw(); });
}
addEventListener("beforeprint", drawAll);

function show() {
  document.querySelectorAll("button[data-variant]").forEach((button) => {
    const variant = Number(button.dataset.variant);
    button.setAttribute("aria-pressed", String(!hidden.has(variant)));
    document.querySelectorAll(`[data-of="${variant}"]`).forEach((node) => { node.hidden = hidden.has(variant); });
  });
  document.getElementById("members").setAttribute("aria-pressed", String(showMembers));
  charts.forEach((chart) => chart.draw());
}
document.querySelectorAll("button[data-variant]").forEach((button) => button.addEventListener("click", () => {
  const variant = Number(button.dataset.variant);
  hidden.has(variant) ? hidden.delete(variant) : hidden.add(variant);
  show();
}));
document.getElementById("members").addEventListener("click", () => { showMembers = !showMembers; show(); });

/** Sort a table by the column of the button: first from high to low (text: from a to z), then the other way. */
function sortBy(button) {
  const heading = button.closest("th"), table = heading.closest("table"), body = table.tBodies[0];
  const column = heading.cellIndex, rows = [...body.rows];
  const key = (row) => row.cells[column].dataset.key;
  const numeric = rows.every((row) => !Number.isNaN(Number(key(row))) || key(row) === "-inf");
  const number = (row) => (key(row) === "-inf" ? -Infinity : Number(key(row)));
  const before = heading.getAttribute("aria-sort");
  const ascending = before ? before === "descending" : !numeric;
  rows.sort((a, b) => {
    const order = numeric ? number(a) - number(b) || 0 : key(a).localeCompare(key(b));
    return ascending ? order : -order;
  });
  table.querySelectorAll("th[aria-sort]").forEach((th) => th.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  body.append(...rows);
}
document.querySelectorAll("th button").forEach((button) => button.addEventListener("click", () => sortBy(button)));

// Served with --watch: poll for a new version, and reload it with the same scroll position and switches.
const KEPT = "nextpolicy-report";
function remember() {
  const sorted = [...document.querySelectorAll("table")].map((table) => {
    const th = table.querySelector("th[aria-sort]");
    return th && [th.cellIndex, th.getAttribute("aria-sort")];
  });
  const open = [...document.querySelectorAll("details")].map((details) => details.open);
  const off = [...hidden].map((variant) => data.variants[variant]);
  sessionStorage.setItem(KEPT, JSON.stringify({ off, showMembers, sorted, open }));
}
function recall() {
  const kept = JSON.parse(sessionStorage.getItem(KEPT) || "null");
  if (!kept) return;
  sessionStorage.removeItem(KEPT);
  kept.off.map((name) => data.variants.indexOf(name)).filter((v) => v >= 0).forEach((v) => hidden.add(v));
  showMembers = kept.showMembers;
  document.querySelectorAll("details").forEach((details, i) => { details.open = Boolean(kept.open[i]); });
  document.querySelectorAll("table").forEach((table, i) => {
    if (!kept.sorted[i]) return;
    const [column, way] = kept.sorted[i], heading = table.tHead.rows[0].cells[column];
    if (!heading) return;
    do sortBy(heading.querySelector("button")); while (heading.getAttribute("aria-sort") !== way);
  });
  show();
}
if (data.watch) {
  recall();
  const live = document.querySelector(".live"), said = live.textContent;
  setInterval(async () => {
    try {
      const answer = await fetch("version");
      live.textContent = answer.ok ? said : "waiting";
      if (answer.ok && (await answer.text()) !== data.watch) { remember(); location.reload(); }
    } catch { live.textContent = "the server has gone"; }
  }, 3000);
}
