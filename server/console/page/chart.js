// A chart of values over time, drawn as SVG at the size that it has.

import {attr, el, svg, text} from "./dom.js";
import {clock, duration} from "./format.js";

const HEIGHT = 120;
const ROOM = 8;  // above the highest value

// The least "round" number that is not below `value`.
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 1.5, 2, 3, 4, 5, 6, 8, 10]) {
    if (step * unit >= value) return step * unit;
  }
  return 10 * unit;
}

function span(ms) {
  const minutes = Math.round(ms / 60000);
  return minutes > 0 ? `${minutes} min` : duration(ms / 1000);
}

// The path of points [x, y], and of the area below.
export function linePath(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

export function areaPath(points, bottom) {
  if (points.length === 0) return "";
  const last = points[points.length - 1];
  return `${linePath(points)}L${last[0].toFixed(1)} ${bottom}L${points[0][0].toFixed(1)} ${bottom}Z`;
}

export class Chart {
  // series: [{name, color}], color one of the style sheet's; format: of a value.
  constructor({title, unit, series, format}) {
    this.series = series;
    this.format = format;
    this.title = title;
    this.unit = unit;
    this.points = [];
    this.begin = this.end = 0;
    this.value = el("span", {class: "value"});
    this.areas = series.map((s) => svg("path", {class: `area ${s.color}`}));
    this.lines = series.map((s) => svg("path", {class: `line ${s.color}`}));
    this.cursor = svg("line", {class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden"});
    this.half = svg("line", {class: "grid", y1: HEIGHT / 2, y2: HEIGHT / 2, x1: 0});
    this.drawing = svg("svg", {role: "img", height: HEIGHT}, this.half, ...this.areas, ...this.lines, this.cursor);
    this.top = el("span", {class: "axis high"});
    this.from = el("span", {class: "axis from"});
    this.tip = el("span", {class: "tip"});
    this.plot = el("div", {class: "plot"}, this.drawing, this.top, this.tip);
    const legend = series.length > 1
        ? el("span", {class: "legend"}, ...series.map((s) => el("span", {class: `key ${s.color}`}, s.name)))
        : null;
    this.node = el("figure", {class: "card chart"},
      el("figcaption", {}, el("span", {class: "name"}, title), legend, el("span", {class: "grow"}), this.value),
      this.plot, el("div", {class: "axes", "aria-hidden": "true"}, this.from, el("span", {class: "grow"}), el("span", {class: "axis"}, "now")));
    this.plot.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.plot.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  // points: [{t: milliseconds, v: [a value for each series]}] in order.
  update(points, begin, end) {
    this.points = points;
    this.begin = begin;
    this.end = end;
    this.draw();
  }

  x(t) {
    return (t - this.begin) / Math.max(1, this.end - this.begin) * this.width;
  }

  draw() {
    this.width = this.plot.clientWidth;
    if (this.width === 0 || this.end === 0) return;
    attr(this.drawing, "width", this.width);
    attr(this.half, "x2", this.width);
    const shown = this.points.filter((p) => p.t >= this.begin);
    const top = roundUp(Math.max(...shown.flatMap((p) => p.v), 0));
    const y = (v) => HEIGHT - v / top * (HEIGHT - ROOM);
    this.series.forEach((_, i) => {
      const points = shown.map((p) => [this.x(p.t), y(p.v[i])]);
      attr(this.lines[i], "d", linePath(points));
      attr(this.areas[i], "d", areaPath(points, HEIGHT));
    });
    text(this.top, this.format(top));
    text(this.from, `${span(this.end - this.begin)} ago`);
    const last = shown[shown.length - 1];
    const now = last ? last.v.map((v) => this.format(v)).join(" / ") : "–";
    text(this.value, `${now} ${this.unit}`);
    attr(this.drawing, "aria-label", `${this.title}: ${this.describe(last)}; at most ${this.format(Math.max(...shown.flatMap((p) => p.v), 0))} in the last ${
      span(this.end - this.begin)}`);
  }

  describe(point) {
    if (!point) return "nothing is known yet";
    return this.series.map((s, i) => `${this.format(point.v[i])} ${this.series.length > 1 ? s.name : this.unit}`).join(", ");
  }

  point(x) {
    const nearest = x === null ? null : this.points.reduce(
      (best, p) => best === null || Math.abs(this.x(p.t) - x) < Math.abs(this.x(best.t) - x) ? p : best, null);
    attr(this.cursor, "visibility", nearest ? "visible" : "hidden");
    if (!nearest) {
      text(this.tip, "");
      return;
    }
    attr(this.cursor, "x1", this.x(nearest.t));
    attr(this.cursor, "x2", this.x(nearest.t));
    text(this.tip, `${clock(nearest.t)}  ${this.describe(nearest)}`);
    this.tip.classList.toggle("left", this.x(nearest.t) > this.width / 2);
  }
}
