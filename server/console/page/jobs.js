// The list of jobs, a page at a time, and what can be done with one.

import {attr, byId, el, keyed, show, text} from "./dom.js";
import {post} from "./api.js";
import {confirm} from "./dialog.js";
import {count, duration, num, percent, plural, rate, word} from "./format.js";

const ENDED = ["completed", "failed", "cancelled"];

// What people call the state of a job.
export function stateOf(job) {
  const state = word(job.state, "JOB_STATE_");
  if (state === "in progress" && job.paused) return "paused";
  if (state === "in progress" && job.detail) return "waiting";
  if (state === "in progress" && num(job.counts.running) === 0) return "queued";
  return state === "in progress" ? "running" : state;
}

export function hasEnded(job) {
  return ENDED.includes(word(job.state, "JOB_STATE_"));
}

// The share of a job's work that is done, by tokens if they are known.
export function shareOf(job) {
  const ended = num(job.counts.completed) + num(job.counts.failed);
  const total = num(job.counts.total);
  if (ended >= total) return total > 0 ? 1 : 0;
  const expected = num(job.expected_tokens);
  const share = expected > 0 ? num(job.processed_tokens) / expected : ended / total;
  return Math.min(0.99, Math.max(0, share));
}

export function nameOf(job) {
  return job.spec?.name || job.id;
}

// A bar of answers, failures and what is under way.
export function progressBar() {
  const done = el("span", {class: "done"});
  const failed = el("span", {class: "failed"});
  const node = el("div", {class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100}, done, failed);
  return {node, update(job) {
    const share = shareOf(job);
    const total = Math.max(1, num(job.counts.total));
    const lost = num(job.counts.failed) / total;
    failed.style.width = `${100 * lost}%`;
    done.style.width = `${100 * Math.max(0, share - lost)}%`;
    attr(node, "aria-valuenow", Math.round(100 * share));
    attr(node, "aria-label", `Progress of ${nameOf(job)}`);
    node.classList.toggle("idle", stateOf(job) !== "running" && !hasEnded(job));
  }};
}

export function stateBadge() {
  const node = el("span", {class: "badge"});
  return {node, update(job) {
    const state = stateOf(job);
    text(node, state);
    node.className = `badge ${state.replaceAll(" ", "-")}`;
  }};
}

// The buttons for a job. `allowed()`: whether the user may; `changed()` is
// called after an action.
export function jobButtons(allowed, changed) {
  let job = null;
  const act = (verb, body) => async () => {
    await post(`jobs/${encodeURIComponent(job.id)}/${verb}`, body);
    changed();
  };
  const pause = el("button", {type: "button", onclick: () => confirm({
    title: `Pause ${nameOf(job)}?`,
    message: `No further request of ${job.id} begins until it is resumed. The ${
      plural(job.counts.running, "request", "requests")} being generated are brought to their end.`,
    yes: "Pause", act: act("pause"), done: `${job.id} is paused`})}, "Pause");
  const resume = el("button", {type: "button", onclick: () => confirm({
    title: `Resume ${nameOf(job)}?`,
    message: `The requests of ${job.id} that have not begun are generated again in their turn.`,
    yes: "Resume", act: act("resume"), done: `${job.id} is resumed`})}, "Resume");
  const priority = el("button", {type: "button", onclick: () => {
    const input = el("input", {type: "number", id: "priority-input", step: 1,
      min: -2147483648, max: 2147483647, value: job.priority});
    confirm({
      title: `Priority of ${nameOf(job)}`,
      message: "Requests not begun go by priority, the highest first, then by the age of their job.",
      fields: el("div", {class: "field"}, el("label", {for: "priority-input"}, "Priority"), input),
      yes: "Set priority",
      act: async () => {
        if (input.value === "" || !input.checkValidity()) throw new Error("a priority is a whole number");
        await act("priority", {priority: Number(input.value)})();
      },
      done: `The priority of ${job.id} is set`});
  }}, "Priority");
  const cancel = el("button", {type: "button", class: "danger", onclick: () => confirm({
    title: `Cancel ${nameOf(job)}?`,
    message: `${plural(num(job.counts.total) - num(job.counts.completed) - num(job.counts.failed), "request", "requests")} of ${
      job.id} without a result end with the error "cancelled". Results so far are kept. This can't be undone.`,
    yes: "Cancel the job", danger: true, act: act("cancel"), done: `${job.id} is being cancelled`})}, "Cancel");
  const node = el("div", {class: "buttons"}, pause, resume, priority, cancel);
  return {node, update(now) {
    job = now;
    const live = word(job.state, "JOB_STATE_") === "in progress";
    show(pause, live && !job.paused);
    show(resume, live && job.paused);
    show(priority, live);
    show(cancel, live || word(job.state, "JOB_STATE_") === "finalizing");
    for (const [button, verb] of [[pause, "Pause"], [resume, "Resume"], [priority, "Priority of"], [cancel, "Cancel"]]) {
      attr(button, "aria-label", `${verb} ${nameOf(job)}`);
      attr(button, "title", allowed() ? null : "Your token does not allow this: it needs the scope submit");
      button.disabled = !allowed();
    }
  }};
}

function jobRow(allowed, changed) {
  const name = el("a", {class: "name"});
  const id = el("span", {class: "dim"});
  const badge = stateBadge();
  const detail = el("div", {class: "dim detail"});
  const bar = progressBar();
  const done = el("span", {});
  const failed = el("span", {class: "bad"});
  const pace = el("span", {});
  const left = el("span", {});
  const priority = el("span", {});
  const buttons = jobButtons(allowed, changed);
  const cell = (label, ...content) => el("td", {"data-label": label, role: "cell"}, ...content);
  const node = el("tr", {role: "row"},
    el("th", {scope: "row", role: "rowheader"}, name, " ", id, detail),
    cell("State", badge.node),
    cell("Progress", bar.node, el("div", {class: "under"}, done, failed)),
    cell("Tokens/s", pace), cell("Time left", left), cell("Priority", priority),
    el("td", {class: "actions", role: "cell"}, buttons.node));
  return {node, update(row) {
    const job = row.job;
    text(name, nameOf(job));
    attr(name, "href", `#job/${encodeURIComponent(job.id)}`);
    text(id, nameOf(job) === job.id ? job.tenant : [job.id, job.tenant].filter(Boolean).join(" · "));
    text(detail, job.detail);
    badge.update(job);
    bar.update(job);
    const ended = num(job.counts.completed) + num(job.counts.failed);
    text(done, `${percent(shareOf(job))} · ${count(ended)} of ${count(job.counts.total)}`);
    text(failed, num(job.counts.failed) ? ` · ${count(job.counts.failed)} failed` : "");
    text(pace, hasEnded(job) ? "–" : rate(row.tokens_per_second));
    text(left, hasEnded(job) ? "–" : duration(row.seconds_left));
    text(priority, job.priority);
    buttons.update(job);
  }};
}

// The table of a page of jobs.
export class JobList {
  constructor(allowed, changed) {
    this.changed = changed;
    this.pages = [""];  // the tokens of the pages up to the one shown
    this.next = "";
    this.empty = el("p", {class: "dim"});
    this.body = el("tbody");
    this.table = el("table", {class: "jobs", role: "table"},
      el("caption", {class: "only-read"}, "Jobs, newest first"),
      el("thead", {}, el("tr", {}, ...["Job", "State", "Progress", "Tokens/s", "Time left", "Priority", "Actions"].map(
        (title) => el("th", {scope: "col"}, title)))),
      this.body);
    this.make = () => jobRow(allowed, changed);
    byId("jobs").replaceChildren(this.empty, this.table);
    this.newer = el("button", {type: "button", onclick: () => this.turn(-1)}, "Newer");
    this.older = el("button", {type: "button", onclick: () => this.turn(1)}, "Older");
    this.where = el("span", {class: "dim"});
    byId("jobs-pager").replaceChildren(this.newer, this.where, this.older);
  }

  path() {
    const token = this.pages[this.pages.length - 1];
    return `jobs?page_size=20${token ? `&page_token=${encodeURIComponent(token)}` : ""}`;
  }

  turn(step) {
    if (step > 0 && this.next) this.pages.push(this.next);
    else if (this.pages.length > 1) this.pages.pop();
    this.changed();
  }

  update(page) {
    this.next = page.next_page_token;
    keyed(this.body, page.jobs, (row) => row.job.id, this.make);
    show(this.table, page.jobs.length > 0);
    show(this.empty, page.jobs.length === 0);
    text(this.empty, this.pages.length > 1 ? "No older jobs." : "No jobs yet: sluice submit -i prompts.jsonl makes one.");
    show(byId("jobs-pager"), this.pages.length > 1 || this.next !== "");
    text(this.where, `Page ${this.pages.length}`);
    this.newer.disabled = this.pages.length === 1;
    this.older.disabled = this.next === "";
  }
}
