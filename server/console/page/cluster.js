// The workers, which layers each computes, what the plan puts where, and how
// busy they are; what went wrong with them.

import {attr, byId, el, keyed, show, text} from "./dom.js";
import {bytes, count, duration, moment, nested, num, percent, plural, rate, word} from "./format.js";

const COLORS = 6;
const LATELY_S = 30;

// Of each worker, its seconds at the polls of the last half minute.
const past = new Map();

// The shares of the time lately: {busy, waiting, idle}.
function activity(worker) {
  const now = {at: performance.now() / 1000, busy: num(worker.busy_seconds),
    waiting: num(worker.waiting_seconds), idle: num(worker.idle_seconds)};
  const polls = past.get(worker.id) ?? [];
  polls.push(now);
  while (polls.length > 2 && now.at - polls[0].at > LATELY_S) polls.shift();
  past.set(worker.id, polls);
  let from = polls[0];
  const total = (a) => now.busy + now.waiting + now.idle - a.busy - a.waiting - a.idle;
  if (polls.length < 2 || total(from) < 1) from = {busy: 0, waiting: 0, idle: 0};
  const sum = total(from);
  if (sum <= 0) return null;
  return {busy: (now.busy - from.busy) / sum, waiting: (now.waiting - from.waiting) / sum,
    idle: (now.idle - from.idle) / sum};
}

// A bar of parts: [{share, class, label}].
function stackedBar() {
  const node = el("div", {class: "stack", role: "img"});
  return {node, update(name, parts) {
    keyed(node, parts, (p) => p.class, (p) => {
      const part = el("span", {class: p.class});
      return {node: part, update(now) {
        part.style.width = `${100 * Math.min(1, Math.max(0, now.share))}%`;
      }};
    });
    attr(node, "aria-label", `${name}: ${parts.map((p) => `${p.label} ${percent(p.share)}`).join(", ")}`);
    attr(node, "title", parts.map((p) => `${p.label} ${percent(p.share)}`).join(" · "));
  }};
}

function meterRow() {
  const label = el("span", {class: "label"});
  const value = el("span", {class: "amount"});
  const fill = el("span", {class: "fill"});
  const mark = el("span", {class: "mark"});
  const track = el("div", {class: "meter"}, fill, mark);
  const node = el("li", {}, label, value, track);
  return {node, update(row) {
    text(label, row.label);
    text(value, row.value);
    fill.style.width = `${100 * Math.min(1, Math.max(0, row.share))}%`;
    show(mark, row.mark !== undefined);
    if (row.mark !== undefined) mark.style.left = `${100 * Math.min(1, row.mark)}%`;
    node.classList.toggle("binding", Boolean(row.binding));
    node.classList.toggle("full", row.share > 0.95);
    attr(track, "title", row.title);
  }};
}

// The shares of a policy's text: "w=20/80/0" as [{name, shares}].
function placement(policy) {
  const kinds = [["w", "Weights"], ["c", "KV cache"], ["h", "Activations"]];
  return kinds.flatMap(([key, name]) => {
    const match = new RegExp(`(?:^| )${key}[ =]([\\d.]+)/([\\d.]+)/([\\d.]+)`).exec(policy ?? "");
    return match ? [{name, shares: match.slice(1).map((p) => Number(p) / 100)}] : [];
  });
}

function placementRow() {
  const label = el("span", {class: "label"});
  const amount = el("span", {class: "amount"});
  const bar = stackedBar();
  const node = el("li", {}, label, amount, bar.node);
  return {node, update({name, shares}) {
    text(label, name);
    const tiers = ["device", "host", "disk"];
    text(amount, tiers.map((t, i) => shares[i] > 0 ? `${t} ${percent(shares[i])}` : "").filter(Boolean).join(", "));
    bar.update(name, tiers.map((t, i) => ({share: shares[i], class: `tier-${t}`, label: t})));
  }};
}

// The plan's pipelines, each with its stages, by the cluster's answer.
function plansOf(state) {
  const plan = nested(state.plan);
  return plan ? plan.pipelines ?? [plan] : [];
}

function colorOf(worker) {
  return `c${Math.max(0, worker.stage) % COLORS}`;
}

function workerCard(drain) {
  let worker = null;
  const name = el("h4", {});
  const badge = el("span", {class: "badge"});
  const where = el("div", {class: "dim"});
  const detail = el("div", {class: "dim detail"});
  const times = el("div", {class: "dim"});
  const bar = stackedBar();
  const loading = el("progress", {max: 1, "aria-label": "Weights loaded"});
  const tiers = el("ul", {class: "meters"});
  const places = el("ul", {class: "meters"});
  const use = el("ul", {class: "meters"});
  const tiersTitle = el("h5", {}, "Memory that the plan fills");
  const placesTitle = el("h5", {}, "Where the plan puts it");
  const useTitle = el("h5", {}, "Resources: share of the time, | as predicted");
  const more = el("details", {}, el("summary", {}, "Details"), detail);
  const button = drain ? el("button", {type: "button", onclick: () => drain.ask(worker)}, "Drain") : null;
  const node = el("li", {class: "worker"},
    el("div", {class: "head"}, name, badge, el("span", {class: "grow"}), button),
    where, loading, bar.node, times, tiersTitle, tiers, useTitle, use, placesTitle, places, more);
  return {node, update({worker: now, stage, binding}) {
    worker = now;
    node.className = `worker ${worker.stage >= 0 ? colorOf(worker) : ""}`;
    text(name, worker.name);
    const state = word(worker.state, "WORKER_STATE_");
    text(badge, state);
    badge.className = `badge ${state.replaceAll(" ", "-")}`;
    const layers = worker.stage >= 0 ? `Layers ${worker.layer_begin}–${worker.layer_end - 1}, stage ${worker.stage + 1}` : "No layers";
    text(where, `${layers} · ${worker.device}, ${bytes(worker.host_memory_bytes)}, ${plural(worker.compute_threads, "thread", "threads")}`);
    const part = activity(worker);
    show(bar.node, part !== null);
    if (part) {
      bar.update(`Time of ${worker.name}`, ["busy", "waiting", "idle"].map((k) => ({share: part[k], class: `time-${k}`, label: k})));
      text(times, ["busy", "waiting", "idle"].map((k) => `${k} ${percent(part[k])}`).join(" · "));
    }
    const fraction = num(worker.load_fraction);
    show(loading, fraction > 0 && fraction < 1 && state !== "ready");
    loading.value = fraction;

    const capacities = (stage?.capacities ?? []).filter((c) => c.limit > 0);
    keyed(tiers, capacities.map((c) => ({label: c.what, value: `${bytes(c.bytes)} of ${bytes(c.limit)}`, share: c.bytes / c.limit,
      title: percent(c.bytes / c.limit)})), (row) => row.label, meterRow);
    show(tiersTitle, capacities.length > 0);
    const shares = placement(stage?.policy);
    keyed(places, shares, (row) => row.name, placementRow);
    show(placesTitle, shares.length > 0);
    const wall = num(worker.plan_seconds);
    const rows = wall > 0 ? worker.resources : [];
    keyed(use, rows.map((r) => ({label: r.resource, value: percent(r.measured_seconds / wall), share: r.measured_seconds / wall,
      mark: r.predicted_seconds / wall, binding: r.resource === binding,
      title: `${r.measured_seconds.toFixed(1)} s measured, ${r.predicted_seconds.toFixed(1)} s predicted, of ${wall.toFixed(1)} s`})),
      (row) => row.label, meterRow);
    show(useTitle, rows.length > 0);
    text(detail, [worker.detail, `version ${worker.version}`, worker.next_link && `hands on by ${worker.next_link}`,
      worker.link_address && `listens on ${worker.link_address}`, worker.metrics_address && `metrics on ${worker.metrics_address}`,
      `last heard of ${duration(num(worker.seconds_since_heartbeat))} ago`].filter(Boolean).join(" · "));
    if (worker.detail) more.open = true;
    if (button) {
      button.disabled = !drain.allowed();
      show(button, drain.possible(worker));
      attr(button, "aria-label", `Drain ${worker.name}`);
      attr(button, "title", drain.allowed() ? null : "Your token does not allow this: it needs the scope admin");
    }
  }};
}

// The model's layers as a bar, a part for each worker of the pipeline.
function layerBar() {
  const node = el("ol", {class: "layers"});
  return {node, update(workers, total) {
    attr(node, "aria-label", `Layers 0 to ${total - 1}`);
    keyed(node, workers, (w) => w.id, () => {
      const label = el("span", {class: "label"});
      const range = el("span", {class: "range"});
      const busy = el("span", {class: "busy", "aria-hidden": "true"});
      const part = el("li", {}, busy, label, range);
      return {node: part, update(worker) {
        const layers = worker.layer_end - worker.layer_begin;
        part.className = colorOf(worker);
        part.style.flexGrow = Math.max(1, layers);
        text(label, worker.name);
        text(range, layers === 1 ? `layer ${worker.layer_begin}` : `${worker.layer_begin}–${worker.layer_end - 1}`);
        const seconds = num(worker.busy_seconds) + num(worker.waiting_seconds) + num(worker.idle_seconds);
        busy.style.width = seconds > 0 ? `${100 * (activityOf(worker)?.busy ?? 0)}%` : "0";
        attr(part, "title", `${worker.name}: ${plural(layers, "layer", "layers")}, ${percent(activityOf(worker)?.busy ?? 0)} busy`);
      }};
    });
  }};
}

// As at the last poll, without counting as one.
function activityOf(worker) {
  const polls = past.get(worker.id) ?? [];
  if (polls.length < 2) return null;
  const [a, b] = [polls[0], polls[polls.length - 1]];
  const sum = b.busy + b.waiting + b.idle - a.busy - a.waiting - a.idle;
  return sum > 0 ? {busy: (b.busy - a.busy) / sum} : null;
}

function pipelineBlock(drain) {
  const title = el("h3", {});
  const facts = el("p", {class: "facts"});
  const bound = el("p", {class: "bound"});
  const bar = layerBar();
  const cards = el("ul", {class: "workers"});
  const node = el("div", {class: "pipeline"}, title, facts, bar.node, bound, cards);
  return {node, update({pipeline, workers, plan, state, several}) {
    show(title, several || !pipeline);
    text(title, pipeline ? `Pipeline ${pipeline.pipeline}` : "Workers without layers");
    const inPlan = workers.filter((w) => w.stage >= 0).sort((a, b) => a.stage - b.stage);
    if (pipeline) {
      const predicted = num(pipeline.predicted_tokens_per_second);
      text(facts, [`Plan ${pipeline.epoch || "–"}: ${pipeline.state}`, plural(pipeline.num_stages, "stage", "stages"),
        `${plural(pipeline.num_blocks, "block", "blocks")} of ${pipeline.gbs} sequences`,
        `${count(pipeline.running)} running, ${count(pipeline.waiting)} waiting`,
        predicted > 0 && `${rate(predicted)} tokens/s predicted`].filter(Boolean).join(" · "));
    }
    show(facts, Boolean(pipeline));
    show(bar.node, inPlan.length > 0);
    const byName = new Map((plan?.stages ?? []).map((s) => [s.worker, s]));
    const binding = plan?.predicted?.binding;
    const boundStage = plan?.stages?.[plan?.predicted?.stage];
    show(bound, Boolean(pipeline && binding && boundStage));
    if (binding && boundStage) text(bound, `Bound by ${binding} of ${boundStage.worker}, as the plan has it`);
    keyed(cards, [...inPlan, ...workers.filter((w) => w.stage < 0)].map((worker) => ({worker,
      stage: byName.get(worker.name), binding: boundStage?.worker === worker.name ? binding : null})),
      (row) => row.worker.id, () => workerCard(drain));
    bar.update(inPlan, state.num_layers);
  }};
}

// `drain`: {allowed(), possible(worker), ask(worker)}, or null.
export function showCluster(state, drain) {
  const root = byId("cluster");
  const plans = plansOf(state);
  const blocks = state.pipelines.map((pipeline, i) => ({pipeline, plan: plans[plans.length === 1 ? 0 : i], state,
    several: state.pipelines.length > 1, workers: state.workers.filter((w) => w.pipeline === pipeline.pipeline)}));
  const others = state.workers.filter((w) => !state.pipelines.some((p) => p.pipeline === w.pipeline));
  if (others.length || blocks.length === 0) blocks.push({pipeline: null, plan: null, state, several: true, workers: others});
  if (!root.blocks) {
    root.blocks = el("div");
    root.empty = el("p", {class: "dim"});
    root.replaceChildren(root.empty, root.blocks);
  }
  text(root.empty, `No workers yet: sluice-worker --coordinator ${location.hostname}:PORT brings one in.`);
  show(root.empty, state.workers.length === 0);
  show(root.blocks, state.workers.length > 0);
  keyed(root.blocks, blocks, (b) => b.pipeline?.pipeline ?? "none", () => pipelineBlock(drain));
}

const ABSENT = {KIND_REFUSED: "refused", KIND_LOST: "lost", KIND_LEFT_OUT: "left out", KIND_LEFT: "left"};

function troubleRow() {
  const what = el("strong");
  const when = el("span", {class: "dim"});
  const why = el("span", {});
  return {node: el("li", {}, what, " ", when, " ", why), update(row) {
    show(what, row.what !== "");
    text(what, row.what);
    text(when, row.when);
    text(why, row.why);
  }};
}

// Workers that are absent, plans that failed, and what kept jobs from running.
export function showTrouble(state, events) {
  const root = byId("trouble");
  if (!root.lists) {
    root.none = el("p", {class: "dim"}, "None since the coordinator started.");
    root.lists = ["Workers that do not take part", "Plans that failed, since the coordinator started",
      "What jobs waited for"].map((title, i) => {
      const list = el("ul", {class: i === 2 ? "trouble lines" : "trouble"});
      const node = el("div", {}, el("h3", {}, title), list);
      return {node, list};
    });
    root.replaceChildren(root.none, ...root.lists.map((l) => l.node));
  }
  const rows = [
    state.absent.map((a, i) => ({key: i, what: `${a.name}: ${ABSENT[a.kind] ?? a.kind}`,
      when: `${duration(num(a.seconds_ago))} ago${num(a.seconds_left) > 0 ? `, for ${duration(num(a.seconds_left))} yet` : ""}`,
      why: a.reason})),
    state.plan_failures.filter((f) => num(f.count) > 0).map((f) => ({key: f.reason, what: f.reason,
      when: plural(f.count, "time", "times"), why: ""})),
    events.slice(-12).reverse().map((e) => ({key: `${e.time_us}${e.text}`, what: "", when: moment(num(e.time_us) / 1000), why: e.text})),
  ];
  rows.forEach((list, i) => {
    show(root.lists[i].node, list.length > 0);
    keyed(root.lists[i].list, list, (row) => row.key, troubleRow);
  });
  show(root.none, rows.every((list) => list.length === 0));
}
