// The charts beside the chat: one tile per figure, the last two minutes, drawn by uPlot (a global, loaded before).
/* global uPlot */
const kWindow = 120;  // seconds

const kTiles = [
  { id: "rate", title: "Tokens/s", unit: "", digits: 1, top: 10 },
  { id: "accept", title: "Accept length", unit: "", digits: 2, top: 6 },
  { id: "step", title: "Step time", unit: "ms", digits: 2, top: 1 },
  { id: "hits", title: "Prefix-cache hits", unit: "%", digits: 0, top: 100, hold: true },  // until the next prompt
  { id: "kv", title: "KV in use", unit: "%", digits: 1, top: 1 },
];

export function node(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

class Tile {
  constructor(parent, spec, times) {
    this.spec = spec;
    this.times = times;
    this.values = [];
    this.figure = node("strong", { id: `figure-${spec.id}` }, "–");
    this.plot = node("div", { class: "plot", "aria-hidden": "true" });
    parent.append(node("div", { class: "tile" },
      node("span", {}, spec.title), " ", this.figure, this.plot));
    this.chart = new uPlot(this.#options(), [times, this.values], this.plot);
    new ResizeObserver(() => this.chart.setSize(this.#size())).observe(this.plot);
  }

  add(value, dropped) {
    if (value === undefined) this.figure.title = "This server does not report it.";
    else this.figure.removeAttribute("title");
    this.values.push(value ?? (this.spec.hold && this.values.at(-1)) ?? null);
    this.values.splice(0, dropped);
    this.chart.setData([this.times, this.values]);
    this.#show();
  }

  // The value under the pointer, otherwise the last one known.
  #show() {
    const index = this.chart.cursor.idx;
    const value = index != null ? this.values[index] : this.values.findLast((v) => v !== null);
    this.figure.textContent = value == null ? "–" : `${value.toFixed(this.spec.digits)} ${this.spec.unit}`.trim();
  }

  #size() {
    return { width: Math.max(80, this.plot.clientWidth), height: 58 };
  }

  #options() {
    const top = (high) => (high > this.spec.top ? high * 1.15 : this.spec.top);
    return {
      ...this.#size(),
      padding: [6, 2, 4, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { setScale: false, x: false }, sync: { key: "lane" } },
      hooks: { setCursor: [() => this.#show()] },
      scales: {
        x: { range: () => [(this.times.at(-1) ?? kWindow) - kWindow, this.times.at(-1) ?? kWindow] },
        y: { range: (_, low, high) => [0, top(high ?? 0)] },
      },
      axes: [
        { show: false },
        {
          size: 34, gap: 4, font: "11px system-ui, sans-serif", stroke: colour("--faint"),
          splits: (_, axis, low, high) => [0, high / (high > this.spec.top ? 1.15 : 1)],
          values: (_, ticks) => ticks.map((v) => (v < 10 && v % 1 ? v.toFixed(1) : v.toFixed(0))),
          grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false },
        },
      ],
      series: [
        {},
        {
          stroke: colour("--accent"), fill: colour("--accent-soft"), width: 1.5,
          points: { size: 3, width: 0, fill: colour("--accent") },
        },
      ],
    };
  }
}

export class Charts {
  #times = [];

  constructor(parent) {
    this.tiles = kTiles.map((spec) => new Tile(parent, spec, this.#times));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
      this.tiles.forEach((tile) => tile.chart.redraw(false)));
  }

  // `figures`: see metrics.js.
  add(seconds, figures) {
    this.#times.push(seconds);
    const old = this.#times.findIndex((time) => time > seconds - kWindow - 1);
    this.#times.splice(0, old);
    for (const tile of this.tiles) tile.add(figures[tile.spec.id], old);
  }
}
