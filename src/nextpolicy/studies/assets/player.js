"use strict";
// The player: two algorithms side by side, drawn from the data in the page. Frame i is the state after i rounds.
const data = JSON.parse(document.getElementById("data").textContent);
const STATES = data.cells.length, ARROWS = ["↑", "→", "↓", "←"], MOVES = [[-1, 0], [0, 1], [1, 0], [0, -1]];
const SMALLEST = 0.05, HEADED = 0.3; // less likely actions have no arrow, and no arrowhead
const DARKEST = 1e-3; // visitations are drawn from this share of the highest, on a logarithmic scale

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const words = (text) => { const view = new DataView(bytes(text).buffer); return Float64Array.from({ length: view.byteLength / 2 }, (_, i) => view.getUint16(2 * i, true) / 65535); };

/** One algorithm's frames as numbers. */
class Run {
  constructor(stored) {
    Object.assign(this, { name: stored.name, slot: stored.slot, updates: stored.updates, said: stored.said });
    this.chances = bytes(stored.policy);
    const value = (share) => data.low + share * (data.high - data.low), squared = (root) => root * root;
    this.arrays = { true: words(stored.true).map(value), predicted: words(stored.predicted).map(value),
      target: words(stored.target).map(squared), behaviour: words(stored.behaviour).map(squared) };
  }
  /** How many targets were replaced before frame i. */
  version(i) { let n = 0; while (n < this.updates.length && this.updates[n] < i) n++; return n; }
  /** true, predicted, target or behaviour of a state in frame i. */
  number(kind, i, state) {
    const frame = kind === "true" || kind === "target" ? this.version(i) : i;
    return this.arrays[kind][frame * STATES + state];
  }
  /** The behaviour's (or the target's) probability of each action. */
  policy(i, state, ofTarget = false) {
    const n = this.version(i), frame = !ofTarget ? i : n ? this.updates[n - 1] + 1 : 0;
    const at = 4 * (frame * STATES + state);
    return [0, 1, 2, 3].map((action) => this.chances[at + action] / 255);
  }
}
const runs = data.algos.map((stored) => new Run(stored));


function shade(kind, value) {
  const share = kind === "target" || kind === "behaviour"
    ? 1 - Math.log(Math.max(value / data.top, DARKEST)) / Math.log(DARKEST)
    : value; // returns lie between 0 and 1
  return data.shades[Math.round(Math.min(Math.max(share, 0), 1) * (data.shades.length - 1))];
}

/** Arrows from the middle of a cell, as long as the action is likely. */
function arrows(run, i) {
  let path = "";
  data.cells.forEach(([row, col], state) => {
    if (state === data.goal) return;
    run.policy(i, state).forEach((chance, action) => {
      if (chance < SMALLEST) return;
      const [dy, dx] = MOVES[action], x = col + 0.5, y = row + 0.5, long = 0.46 * chance, head = 0.19;
      const tip = [x + dx * long, y + dy * long], side = (s) => `${(tip[0] - head * (dx + s * dy)).toFixed(2)} ${(tip[1] - head * (dy + s * dx)).toFixed(2)}`;
      const at = `${tip[0].toFixed(2)} ${tip[1].toFixed(2)}`;
      path += `M${x} ${y}L${at}` + (chance < HEADED ? "" : `M${side(1)}L${at}L${side(-1)}`);
    });
  });
  return path;
}

/** Plus and minus signs where the critic is far too high or too low. */
function signs(run, i) {
  return data.cells.map(([row, col], state) => {
    const wrong = run.number("predicted", i, state) - run.number("true", i, state);
    if (state === data.goal || Math.abs(wrong) <= data.large) return "";
    return `M${col + 0.3} ${row + 0.5}h.4` + (wrong > 0 ? `M${col + 0.5} ${row + 0.3}v.4` : "");
  }).join("");
}

class Map13 {
  constructor(holder, kind, choose) {
    this.kind = kind;
    const root = this.root = svg("svg", { viewBox: "0 0 13 13", role: "img" }, holder);
    svg("rect", { width: 13, height: 13, class: "floor" }, root);
    svg("path", { d: data.walls.map(([row, col]) => `M${col} ${row}h1v1h-1z`).join(""), class: "wall" }, root);
    this.cells = data.cells.map(([row, col], state) => {
      const cell = svg("rect", { x: col, y: row, width: 1.01, height: 1.01, class: state === data.goal ? "goal" : "cell" }, root);
      cell.addEventListener("click", () => choose(state));
      return cell;
    });
    this.lines = svg("path", { class: kind === "policy" ? "arrows" : "signs" }, root);
    for (const [letter, state] of [["S", data.start], ["G", data.goal]]) {
      const [row, col] = data.cells[state];
      svg("text", { x: col + 0.5, y: row + 0.82, class: letter === "S" ? "letter start" : "letter" }, root, letter);
    }
    this.cursor = svg("rect", { width: 1, height: 1, class: "cursor" }, root);
  }
  draw(run, i, chosen) {
    const policy = this.kind === "policy";
    this.cells.forEach((cell, state) => {
      if (state === data.goal) return;
      if (policy) {
        const target = run.policy(i, state, true);
        const apart = run.policy(i, state).reduce((sum, chance, a) => sum + Math.abs(chance - target[a]) / 2, 0);
        cell.style.fill = `var(--c${run.slot})`;
        cell.style.fillOpacity = apart.toFixed(2);
      } else cell.style.fill = shade(this.kind, run.number(this.kind, i, state));
    });
    if (policy) this.lines.setAttribute("d", arrows(run, i));
    if (this.kind === "predicted") this.lines.setAttribute("d", signs(run, i));
    const [row, col] = data.cells[chosen];
    this.cursor.setAttribute("x", col);
    this.cursor.setAttribute("y", row);
    const round = i ? `after round ${i - 1}` : "before training";
    this.root.setAttribute("aria-label", `${run.name}, ${round}: ${LABELS[this.kind]}`);
  }
}

const player = document.getElementById("player"), slider = document.getElementById("round");
const LABELS = Object.fromEntries([...player.querySelectorAll(".side:first-child .map")].map((map) => [map.classList[1], map.querySelector("p").textContent]));
const sides = [...player.querySelectorAll(".side")].map((side) => ({
  side, maps: [...side.querySelectorAll(".map")].map((map) => new Map13(map.querySelector(".plot"), map.classList[1], choose)),
}));
let rival = Number(document.getElementById("rival").value), chosen = data.start, timer = null;

function choose(state) { chosen = state; draw(); }
function neighbour(way) {
  const [row, col] = data.cells[chosen], [dy, dx] = MOVES[way];
  const found = data.cells.findIndex(([r, c]) => r === row + dy && c === col + dx);
  if (found >= 0) choose(found);
}

function rows(run, i) {
  const few = (x) => (x !== 0 && Math.abs(x) < 0.01 ? x.toExponential(1) : x.toFixed(3));
  const chances = (ofTarget) => run.policy(i, chosen, ofTarget).map((p, a) => `${ARROWS[a]}\u00a0${p.toFixed(2)}`).join("  ");
  return [["true value", few(run.number("true", i, chosen))], ["predicted value", few(run.number("predicted", i, chosen))],
    ["time there, target", few(run.number("target", i, chosen))], ["time there, behaviour", few(run.number("behaviour", i, chosen))],
    ["target", chances(true)], ["behaviour", chances(false)]];
}

function draw() {
  const i = Number(slider.value), shown = [runs[0], runs[rival]], [row, col] = data.cells[chosen];
  const cell = `row ${row}, column ${col}` + (chosen === data.start ? " (S)" : chosen === data.goal ? " (G)" : "");
  sides.forEach(({ side, maps }, n) => {
    const run = shown[n];
    side.style.setProperty("--c", `var(--c${run.slot})`);
    side.querySelector("h3").textContent = run.name;
    side.querySelector(".said").textContent = run.said[i];
    side.classList.toggle("moved", run.updates.length < data.rounds && run.updates.includes(i - 1));
    maps.forEach((map) => map.draw(run, i, chosen));
    const table = side.querySelector("tbody");
    table.replaceChildren(...[["cell", cell], ...rows(run, i)].map(([name, value]) => {
      const line = document.createElement("tr");
      line.append(Object.assign(document.createElement("th"), { textContent: name, scope: "row" }), Object.assign(document.createElement("td"), { textContent: value }));
      return line;
    }));
  });
  const name = i ? `round ${i - 1} of ${data.rounds - 1}` : "start";
  document.getElementById("round-name").textContent = name;
  slider.setAttribute("aria-valuetext", `${name}. ${shown.map((run) => `${run.name}: ${run.said[i]}`).join(" ")}`);
}

/** A tick for each target update: PPO's above the slider, those of the other below. */
function ticks() {
  player.querySelectorAll(".ticks").forEach((line, n) => {
    const run = [runs[0], runs[rival]][n];
    line.style.setProperty("--c", `var(--c${run.slot})`);
    line.setAttribute("role", "img");
    line.setAttribute("aria-label", `${run.updates.length} target updates of ${run.name}`);
    line.replaceChildren(...run.updates.map((k) => {
      const tick = document.createElement("i");
      tick.dataset.round = k;
      tick.style.left = `${(100 * (k + 1)) / data.rounds}%`;
      return tick;
    }));
  });
}

function play(on) {
  const button = document.getElementById("play");
  clearInterval(timer);
  timer = null;
  button.textContent = on ? "❚❚ pause" : "▶ play";
  button.setAttribute("aria-pressed", String(on));
  player.querySelectorAll(".said").forEach((said) => said.setAttribute("aria-live", on ? "off" : "polite"));
  if (!on) return;
  if (Number(slider.value) === data.rounds) slider.value = 0;
  timer = setInterval(() => { go(Number(slider.value) + 1); if (Number(slider.value) === data.rounds) play(false); }, 140);
}
function go(i) { slider.value = i; draw(); }
/** To the next or previous update of the algorithm beside PPO. */
function toUpdate(way) {
  const i = Number(slider.value), frames = runs[rival].updates.map((k) => k + 1);
  const found = way > 0 ? frames.find((frame) => frame > i) : frames.findLast((frame) => frame < i);
  if (found !== undefined) { play(false); go(found); }
}

slider.addEventListener("input", () => { play(false); draw(); });
document.getElementById("play").addEventListener("click", () => play(!timer));
document.getElementById("back").addEventListener("click", () => toUpdate(-1));
document.getElementById("next").addEventListener("click", () => toUpdate(1));
document.getElementById("rival").addEventListener("change", (event) => { rival = Number(event.target.value); ticks(); draw(); });
player.addEventListener("keydown", (event) => {
  const on = event.target.tagName;
  if (event.key === " " && on !== "BUTTON" && on !== "SELECT") { event.preventDefault(); play(!timer); }
  const way = { ArrowUp: 0, ArrowRight: 1, ArrowDown: 2, ArrowLeft: 3 }[event.key];
  if (event.shiftKey && way !== undefined) { event.preventDefault(); return neighbour(way); }
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step && on !== "INPUT" && on !== "SELECT") { event.preventDefault(); play(false); go(Number(slider.value) + step); }
});
// A click beside the controls leaves the keys with the slider.
player.addEventListener("click", (event) => { if (!event.target.closest("button, select, input, label")) slider.focus({ preventScroll: true }); });

const scale = (label, low, high) => `<span>${label}: ${low}<i style="background:linear-gradient(90deg,${data.shades.join(",")})"></i>${high}</span>`;
player.querySelector(".scales").innerHTML = scale("value", 0, 1) + scale("time spent there", "rarely", "often")
  + `<span>+ predicted more than ${data.large} too high</span><span>− more than ${data.large} too low</span><span>click a cell for its numbers</span>`;
slider.value = data.first;
ticks();
draw();
