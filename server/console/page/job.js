// One job: what it is, how far it is, its course and the requests that failed.

import {attr, byId, el, keyed, show, text} from "./dom.js";
import {get} from "./api.js";
import {count, duration, moment, nested, num, percent, rate} from "./format.js";
import {hasEnded, jobButtons, nameOf, progressBar, shareOf, stateBadge} from "./jobs.js";
import {Timeline} from "./timeline.js";

const ERRORS = 20;

function time(stamp) {
  return stamp ? Date.parse(stamp) : null;
}

function facts(row) {
  const job = row.job;
  const began = time(job.in_progress_at);
  const ended = time(job.finished_at);
  const list = [
    ["Requests", `${count(job.counts.completed)} answered, ${count(job.counts.failed)} failed${
      num(job.counts.cancelled) ? ` (${count(job.counts.cancelled)} cancelled)` : ""}, ${count(job.counts.running)} running, ${
      count(job.counts.total)} in all`],
    ["Tokens", `${count(job.prompt_tokens)} of prompts, ${count(job.generation_tokens)} generated, in requests that ended`],
    ["Accepted", began ? moment(began) : "–"],
  ];
  if (ended) {
    const seconds = (ended - began) / 1000;
    list.push(["Ended", `${moment(ended)}, after ${duration(seconds)}`]);
    if (seconds > 0) list.push(["On the whole", `${rate(num(job.generation_tokens) / seconds)} tokens/s`]);
  } else {
    list.push(["Tokens/s", rate(row.tokens_per_second)], ["Time left", duration(row.seconds_left)]);
  }
  list.push(["Priority", String(job.priority)]);
  if (num(job.replays)) list.push(["Computed again", `${count(job.replays)} times a request, after failures`]);
  if (num(job.answers_cut_by_default)) {
    list.push(["Cut", `${count(job.answers_cut_by_default)} answers at the default of ${count(job.default_max_tokens)} tokens`]);
  }
  const plan = nested(job.plan);
  for (const p of plan ? plan.pipelines ?? [plan] : []) {
    const predicted = p.predicted;
    if (predicted?.tokens_per_second) {
      list.push(["Plan", `${rate(predicted.tokens_per_second)} tokens/s predicted, bound by ${predicted.binding} of ${
        p.stages[predicted.stage]?.worker}`]);
    }
  }
  if (job.tenant) list.push(["Tenant", job.tenant]);
  for (const [key, value] of Object.entries(job.spec?.metadata ?? {})) list.push([key, value]);
  return list;
}

function factRow() {
  const name = el("dt");
  const value = el("dd");
  return {node: el("div", {}, name, value), update([key, shown]) {
    text(name, key);
    text(value, shown);
  }};
}

function errorRow() {
  const line = el("td", {"data-label": "Line"});
  const id = el("td", {"data-label": "custom_id", class: "wrap"});
  const code = el("td", {"data-label": "Code"});
  const why = el("td", {"data-label": "Reason", class: "wrap"});
  return {node: el("tr", {}, line, id, code, why), update(error) {
    text(line, count(error.index + 1));
    text(id, error.custom_id);
    text(code, error.code);
    text(why, error.message.replace(/^line \d+: /, ""));
  }};
}

// The failed requests of a job, a page at a time.
class FailedRequests {
  constructor(id) {
    this.id = id;
    this.pages = [0];
    this.next = null;
    this.shown = "";
    this.body = el("tbody");
    this.table = el("table", {class: "errors", role: "table"},
      el("caption", {class: "only-read"}, "Failed requests"),
      el("thead", {}, el("tr", {}, ...["Line", "custom_id", "Code", "Reason"].map((t) => el("th", {scope: "col"}, t)))),
      this.body);
    this.none = el("p", {class: "dim"}, "None so far.");
    this.problem = el("p", {class: "problem", role: "alert", hidden: true});
    this.before = el("button", {type: "button", onclick: () => this.turn(-1)}, "Previous");
    this.after = el("button", {type: "button", onclick: () => this.turn(1)}, "Next");
    this.where = el("span", {class: "dim"});
    this.pager = el("nav", {class: "pager", "aria-label": "Pages of failed requests"}, this.before, this.where, this.after);
    this.title = el("h2", {}, "Failed requests");
    this.node = el("section", {class: "card", "aria-label": "Failed requests"},
      el("div", {class: "head"}, this.title, el("span", {class: "grow"}), this.pager),
      this.problem, this.none, this.table);
  }

  turn(step) {
    if (step > 0 && this.next !== null) this.pages.push(this.next);
    else if (this.pages.length > 1) this.pages.pop();
    this.load(true);
  }

  // Looks for new ones when the number of failures has changed.
  async update(job) {
    text(this.title, num(job.counts.failed) ? `Failed requests: ${count(job.counts.failed)}` : "Failed requests");
    if (this.shown === job.counts.failed) return;
    this.shown = job.counts.failed;
    await this.load(num(job.counts.failed) > 0);
  }

  async load(any) {
    let page = {errors: [], next_from: null};
    try {
      if (any) page = await get(`jobs/${encodeURIComponent(this.id)}/errors?limit=${ERRORS}&from=${this.pages[this.pages.length - 1]}`);
      show(this.problem, false);
    } catch (error) {
      text(this.problem, error.message);
      show(this.problem, true);
      this.shown = "";  // to be tried again
      return;
    }
    this.next = page.next_from;
    keyed(this.body, page.errors, (e) => e.index, errorRow);
    show(this.table, page.errors.length > 0);
    show(this.none, page.errors.length === 0);
    show(this.pager, this.pages.length > 1 || this.next !== null);
    text(this.where, `Page ${this.pages.length}`);
    this.before.disabled = this.pages.length === 1;
    this.after.disabled = this.next === null;
  }
}

export class JobView {
  constructor(id, allowed, changed) {
    this.id = id;
    this.title = el("h1", {tabindex: -1});
    this.badge = stateBadge();
    this.detail = el("p", {class: "detail"});
    this.bar = progressBar();
    this.under = el("p", {class: "under"});
    this.facts = el("dl", {class: "facts"});
    this.buttons = jobButtons(allowed, changed);
    this.timeline = new Timeline();
    this.failed = new FailedRequests(id);
    this.problem = el("p", {class: "problem", role: "alert", hidden: true});
    byId("job").replaceChildren(
      el("p", {}, el("a", {href: "#"}, "← All jobs")),
      this.problem,
      el("section", {class: "card", "aria-label": "The job"},
        el("div", {class: "head"}, this.title, this.badge.node, el("span", {class: "grow"}), this.buttons.node),
        this.detail, this.bar.node, this.under, this.facts),
      this.timeline.node, this.failed.node);
    text(this.title, id);
  }

  // `events`: of all jobs.
  async refresh(events) {
    const path = `jobs/${encodeURIComponent(this.id)}`;
    let row, timeline;
    try {
      [row, timeline] = await Promise.all([get(path), get(`${path}/timeline`)]);
      show(this.problem, false);
    } catch (error) {
      if (error.status !== 404) throw error;
      text(this.problem, `There is no job ${this.id}: it was deleted, or is not yours.`);
      show(this.problem, true);
      return;
    }
    const job = row.job;
    document.title = `${percent(shareOf(job))} ${nameOf(job)} · Sluice`;
    text(this.title, nameOf(job));
    attr(this.title, "title", job.id);
    this.badge.update(job);
    text(this.detail, job.detail);
    show(this.detail, job.detail !== "");
    this.bar.update(job);
    text(this.under, `${job.id} · ${percent(shareOf(job))}`);
    keyed(this.facts, facts(row), ([key]) => key, factRow);
    this.buttons.update(job);
    this.timeline.update(timeline, events(), num(job.counts.total), hasEnded(job));
    await this.failed.update(job);
  }
}
