// The page as a whole: who looks, which part is shown, and when it is asked
// for anew.

import {attr, byId, el, keyed, say, show, text} from "./dom.js";
import {forgetToken, get, hasToken, keepToken} from "./api.js";
import {Chart} from "./chart.js";
import {showCluster, showTrouble} from "./cluster.js";
import {count, num, rate, short, word} from "./format.js";
import {JobList} from "./jobs.js";
import {JobView} from "./job.js";

const POLL_MS = 2000;
const HIDDEN_MS = 30000;
const SLOWEST_MS = 30000;
const WINDOW_US = 30 * 60e6;
const LEAST_US = 2 * 60e6;
const SMOOTHED = 3;  // samples that a rate goes over

let session = {read: false, submit: false, admin: false};
let timer = 0;
let failures = 0;
let polling = null;
let jobView = null;
let samples = [];
let events = [];

const allowed = () => session.submit;
const list = new JobList(allowed, () => poll());
const charts = [
  new Chart({title: "Generated tokens", unit: "tokens/s", format: rate, series: [{name: "generated", color: "c0"}]}),
  new Chart({title: "Prompt tokens", unit: "tokens/s", format: rate, series: [{name: "computed", color: "c1"}]}),
  new Chart({title: "Requests", unit: "", format: short,
    series: [{name: "running", color: "c0"}, {name: "waiting", color: "c2"}]}),
];
byId("charts").replaceChildren(...charts.map((chart) => chart.node));

// -- Who looks.

function askForToken(problem) {
  session = {read: false, submit: false, admin: false};
  show(byId("signin"), true);
  show(byId("overview"), false);
  show(byId("job"), false);
  text(byId("signin-problem"), problem);
  for (const id of ["model", "state", "who", "version"]) text(byId(id), "");
  show(byId("forget"), hasToken());
  document.title = "Sluice";
}

async function begin() {
  clearTimeout(timer);
  try {
    session = await get("session");
  } catch (error) {
    failed(error);
    return;
  }
  connected();
  if (!session.read) {
    askForToken(session.problem);
    byId("signin-token").focus();
    return;
  }
  show(byId("signin"), false);
  show(byId("forget"), hasToken());
  const may = ["read", "submit", "admin"].filter((scope) => session[scope]).join(", ");
  text(byId("who"), hasToken() && session.name ? `${session.name} (${may})` : "");
  text(byId("version"), `Sluice ${session.version}`);
  route();
}

byId("signin-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("signin-token").value.trim());
  byId("signin-token").value = "";
  begin();
});
byId("forget").addEventListener("click", () => {
  forgetToken();
  location.reload();  // nothing that was shown stays
});

// -- What is shown.

function route() {
  if (!session.read) return;
  const match = /^#job\/(.+)$/.exec(location.hash);
  const id = match ? decodeURIComponent(match[1]) : null;
  show(byId("overview"), id === null);
  show(byId("job"), id !== null);
  if (id === null) {
    jobView = null;
    document.title = "Sluice";
  } else if (jobView?.id !== id) {
    jobView = new JobView(id, allowed, () => poll());
    scrollTo(0, 0);
    jobView.title.focus({preventScroll: true});
  }
  poll();
}
addEventListener("hashchange", route);
byId("home").addEventListener("click", (event) => {
  event.preventDefault();
  location.hash = "";
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("content").focus();
});

// -- Polling: one at a time, slower while nobody looks or nothing answers.

function poll() {
  clearTimeout(timer);
  if (polling === null) {
    polling = refresh().then(connected, failed).finally(() => {
      polling = null;
      schedule();
    });
    return;
  }
  polling.finally(poll);  // what is under way may have missed the reason for this
}

function schedule() {
  clearTimeout(timer);
  if (!session.read && failures === 0) return;
  const wait = failures > 0 ? Math.min(SLOWEST_MS, POLL_MS * 2 ** (failures - 1)) : POLL_MS;
  timer = setTimeout(session.read ? poll : begin, document.hidden ? Math.max(HIDDEN_MS, wait) : wait);
}
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && session.read) poll();
});

function connected() {
  if (failures > 0) say("The coordinator answers again");
  failures = 0;
  show(byId("banner"), false);
}

function failed(error) {
  if (error.status === 401 || error.status === 403) {
    location.reload();
    return;
  }
  ++failures;
  text(byId("banner"), `${error.message}; what is shown may be old. It is asked again.`);
  show(byId("banner"), true);
  if (polling === null) schedule();
}

async function refresh() {
  const view = jobView;
  const last = samples.length ? samples[samples.length - 1][0] : 0;
  const [cluster, queue, jobs] = await Promise.all([
    get("cluster"), get(`queue?after_us=${last}`), view ? null : get(list.path()),
    view ? view.refresh(() => events) : null]);
  samples.push(...queue.samples);
  events = queue.events;
  const newest = samples.length ? samples[samples.length - 1][0] : 0;
  samples = samples.filter((s) => s[0] > newest - WINDOW_US);
  showTop(cluster);
  if (jobs === null || jobView !== null) return;
  list.update(jobs);
  showTiles(cluster);
  showCharts();
  showCluster(cluster, null);
  showTrouble(cluster, events);
}

function showTop(cluster) {
  text(byId("model"), cluster.model);
  const known = ["running", "idle", "loading"].includes(cluster.state);
  text(byId("state"), known ? cluster.state : "waiting");
  attr(byId("state"), "title", cluster.state);
  byId("state").className = `badge ${known ? cluster.state : "waiting"}`;
}

function tile() {
  const value = el("strong");
  const name = el("span", {class: "name"});
  const more = el("span", {class: "dim"});
  return {node: el("li", {class: "card tile"}, name, value, more), update(row) {
    text(name, row.name);
    text(value, row.value);
    text(more, row.more);
  }};
}

function showTiles(cluster) {
  const ready = cluster.workers.filter((w) => word(w.state, "WORKER_STATE_") === "ready").length;
  const predicted = cluster.pipelines.reduce((sum, p) => sum + num(p.predicted_tokens_per_second), 0);
  const newest = samples[samples.length - 1];
  const known = ["running", "idle"].includes(cluster.state);
  keyed(byId("tiles"), [
    {name: "Generated", value: `${rate(cluster.generation_tokens_per_second)} tokens/s`,
      more: predicted > 0 ? `${rate(predicted)} predicted` : newest ? `${short(newest[2])} tokens so far` : ""},
    {name: "Running", value: short(cluster.running), more: "requests"},
    {name: "Waiting", value: short(newest ? newest[4] : cluster.waiting), more: "requests"},
    {name: "Workers", value: `${ready} of ${cluster.workers.length}`, more: cluster.absent.length
      ? `ready, ${count(cluster.absent.length)} absent` : "ready"},
    {name: "Plan", value: num(cluster.epoch) ? `${count(cluster.epoch)}` : "none",
      more: known ? `${cluster.num_layers} layers, ${cluster.dtype}` : cluster.state},
  ], (row) => row.name, tile);
}

function showCharts() {
  const newest = samples[samples.length - 1];
  if (!newest) return;
  const begin = Math.max(newest[0] - WINDOW_US, Math.min(samples[0][0], newest[0] - LEAST_US)) / 1000;
  const pace = (k) => samples.slice(1).map((s, i) => {
    const from = samples[Math.max(0, i + 1 - SMOOTHED)];
    // A coordinator that started anew counts from 0.
    return {t: s[0] / 1000, v: [Math.max(0, s[k] - from[k]) / Math.max(1e-3, (s[0] - from[0]) / 1e6)]};
  });
  charts[0].update(pace(2), begin, newest[0] / 1000);
  charts[1].update(pace(1), begin, newest[0] / 1000);
  charts[2].update(samples.map((s) => ({t: s[0] / 1000, v: [s[3], s[4]]})), begin, newest[0] / 1000);
}

// -- Light and dark.

const THEMES = [["auto", "◐ Auto", "as the system"], ["light", "☀ Light", "light"], ["dark", "☾ Dark", "dark"]];

function setTheme(theme) {
  attr(document.documentElement, "data-theme", theme === "auto" ? null : theme);
  localStorage.setItem("sluice-theme", theme);
  const [, label, meaning] = THEMES.find(([name]) => name === theme);
  text(byId("theme"), label);
  attr(byId("theme"), "aria-label", `Theme: ${meaning}`);
}
byId("theme").addEventListener("click", () => {
  const now = THEMES.findIndex(([name]) => name === localStorage.getItem("sluice-theme"));
  setTheme(THEMES[(now + 1) % THEMES.length][0]);
});
const kept = localStorage.getItem("sluice-theme");
setTheme(THEMES.some(([name]) => name === kept) ? kept : "auto");

begin();
