// A job's course: its state, the tokens that it made and what happened, over
// time.

import {attr, el, keyed, show, svg, text} from "./dom.js";
import {areaPath, linePath, roundUp} from "./chart.js";
import {clock, moment, num, rate} from "./format.js";

const TOP = 18;
const PLOT = 110;
const LANE = 14;
const HEIGHT = TOP + PLOT + 8 + LANE;
const MOST_PARTS = 80;
const MARKED = ["paused", "resumed", "priority", "plan", "replay", "restart", "state", "ended"];
const LETTERS = {paused: "‖", resumed: "▸", priority: "↕", plan: "P", replay: "↻", restart: "⏻", state: "•", ended: "■"};

// Stretches of one state: [{from, to, state}], from samples and events.
export function stretches(samples, events, end) {
  const pauses = [];
  for (const event of events) {
    if (event.kind === "paused") pauses.push([event.time_us, end]);
    if (event.kind === "resumed" && pauses.length) pauses[pauses.length - 1][1] = event.time_us;
  }
  const found = [];
  const add = (from, to, state) => {
    const last = found[found.length - 1];
    if (to <= from) return;
    if (last && last.state === state) last.to = to;
    else found.push({from, to, state});
  };
  samples.forEach((sample, i) => {
    const from = sample[0];
    const to = i + 1 < samples.length ? samples[i + 1][0] : end;
    const paused = pauses.some(([begin, until]) => from >= begin && from < until);
    const next = samples[i + 1];
    const runs = sample[4] > 0 || (next && (next[1] > sample[1] || next[2] > sample[2]));
    add(from, to, paused ? "paused" : runs ? "running" : "waiting");
  });
  return found;
}

// [{from, to, v}]: tokens a second, over stretches that are each as long as
// some samples, since tokens come by steps.
export function rates(samples) {
  const begin = samples[0][0];
  const end = samples[samples.length - 1][0];
  const parts = Math.max(1, Math.min(MOST_PARTS, Math.floor(samples.length / 3)));
  let i = 0;
  const madeUntil = (t) => {
    while (i + 2 < samples.length && samples[i + 1][0] < t) ++i;
    const [a, b] = [samples[i], samples[i + 1]];
    return b[0] > a[0] ? a[2] + (b[2] - a[2]) * (t - a[0]) / (b[0] - a[0]) : b[2];
  };
  const found = [];
  let made = samples[0][2];
  for (let part = 1; part <= parts && end > begin; ++part) {
    const to = begin + (end - begin) * part / parts;
    const now = madeUntil(to);
    const from = begin + (end - begin) * (part - 1) / parts;
    found.push({from, to, v: Math.max(0, now - made) / ((to - from) / 1e6)});
    made = now;
  }
  return found;
}

export class Timeline {
  constructor() {
    this.area = svg("path", {class: "area c0"});
    this.line = svg("path", {class: "line c0"});
    this.share = svg("path", {class: "line c1 thin"});
    this.lane = svg("g");
    this.marks = svg("g");
    this.drawing = svg("svg", {role: "img", height: HEIGHT}, this.area, this.line, this.share, this.lane, this.marks);
    this.top = el("span", {class: "axis high"});
    this.from = el("span", {class: "axis"});
    this.until = el("span", {class: "axis"});
    this.plot = el("div", {class: "plot timeline"}, this.drawing, this.top);
    this.none = el("p", {class: "dim"}, "This job's course is not known: it ended before the coordinator started, or long ago.");
    this.list = el("ol", {class: "events"});
    this.picture = el("div", {},
      el("p", {class: "legend"},
        el("span", {class: "key c0"}, "Tokens/s"), el("span", {class: "key c1"}, "Requests ended"),
        el("span", {class: "key lane-running"}, "running"), el("span", {class: "key lane-paused"}, "paused"),
        el("span", {class: "key lane-waiting"}, "waiting")),
      this.plot, el("div", {class: "axes"}, this.from, el("span", {class: "grow"}), this.until));
    this.node = el("section", {class: "card", "aria-label": "Timeline"},
      el("h2", {}, "Timeline"), this.none, this.picture, this.list);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  // `others`: what kept all jobs from running, or no longer did.
  update(timeline, others, total, ended) {
    this.samples = timeline.samples;
    this.total = total;
    const newest = Math.max(...[...timeline.samples.map((s) => s[0]), ...timeline.events.map((e) => e.time_us)]);
    this.end = ended ? newest : Math.max(newest, Date.now() * 1000);
    const begin = timeline.events[0]?.time_us ?? Infinity;
    this.events = [...timeline.events, ...others.filter((e) => e.time_us > begin && e.time_us < this.end)]
        .sort((a, b) => a.time_us - b.time_us);
    show(this.none, this.events.length === 0);
    show(this.picture, this.samples.length > 1);
    keyed(this.list, [...this.events].reverse(), (e) => `${e.time_us}${e.kind}`, () => {
      const when = el("time", {class: "dim"});
      const what = el("span", {});
      return {node: el("li", {}, when, what), update(event) {
        text(when, moment(num(event.time_us) / 1000));
        text(what, event.text);
      }};
    });
    this.draw();
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!this.samples || this.samples.length < 2 || width === 0) return;
    attr(this.drawing, "width", width);
    const begin = Math.min(this.samples[0][0], this.events[0]?.time_us ?? Infinity);
    const x = (t) => (t - begin) / Math.max(1, this.end - begin) * width;
    const bottom = TOP + PLOT;
    const paces = rates(this.samples);
    const high = roundUp(Math.max(0, ...paces.map((p) => p.v)));
    const y = (v) => bottom - v / high * PLOT;
    const steps = paces.flatMap((p) => [[x(p.from), y(p.v)], [x(p.to), y(p.v)]]);
    attr(this.line, "d", linePath(steps));
    attr(this.area, "d", areaPath(steps, bottom));
    attr(this.share, "d", linePath(this.samples.map((s) => [x(s[0]), bottom - s[3] / Math.max(1, this.total) * PLOT])));
    text(this.top, `${rate(high)} tokens/s`);
    text(this.from, clock(begin / 1000));
    text(this.until, clock(this.end / 1000));
    const lanes = stretches(this.samples, this.events, this.end);
    this.lane.replaceChildren(...lanes.map((s) => svg("rect", {class: `lane-${s.state}`, x: x(s.from),
      width: Math.max(1, x(s.to) - x(s.from)), y: bottom + 8, height: LANE}, svg("title", {}, s.state))));
    this.marks.replaceChildren(...this.events.filter((e) => MARKED.includes(e.kind)).map((e) => svg("g", {class: "event"},
      svg("line", {x1: x(e.time_us), x2: x(e.time_us), y1: TOP, y2: HEIGHT}),
      svg("text", {x: Math.min(width - 7, Math.max(7, x(e.time_us))), y: TOP - 5}, LETTERS[e.kind]),
      svg("title", {}, e.text))));
    attr(this.drawing, "aria-label", `From ${clock(begin / 1000)} to ${clock(this.end / 1000)}: ${
      lanes.map((s) => s.state).join(", then ")}; at most ${rate(high)} tokens a second`);
  }
}
