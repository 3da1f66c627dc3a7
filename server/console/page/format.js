// How numbers, times and names look.

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", {notation: "compact", maximumFractionDigits: 1});

// 64-bit numbers come as texts.
export function num(value) {
  return Number(value ?? 0);
}

export function count(value) {
  return WHOLE.format(num(value));
}

export function short(value) {
  const n = num(value);
  return Math.abs(n) < 10000 ? WHOLE.format(Math.round(n)) : SHORT.format(n);
}

export function rate(value) {
  const n = num(value);
  if (n === 0) return "0";
  return n < 10 ? n.toFixed(2) : n < 100 ? n.toFixed(1) : short(n);
}

export function percent(share) {
  return `${Math.round(100 * share)} %`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let n = num(value);
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    ++unit;
  }
  return `${n < 10 && unit > 0 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB");
}

export function moment(ms) {
  const date = new Date(ms);
  const day = date.toDateString() === new Date().toDateString()
      ? "" : `${date.toLocaleDateString("en-CA")} `;
  return day + date.toLocaleTimeString("en-GB");
}

// "JOB_STATE_IN_PROGRESS" as "in progress".
export function word(name, prefix) {
  return (name ?? "").replace(prefix, "").toLowerCase().replaceAll("_", " ");
}

export function plural(n, one, many) {
  return `${count(n)} ${num(n) === 1 ? one : many}`;
}

// JSON in a text; null if it is none.
export function nested(json) {
  try {
    return json ? JSON.parse(json) : null;
  } catch {
    return null;
  }
}
