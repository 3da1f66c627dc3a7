// Requests to the coordinator. The token lives in this tab's session only.

const TOKEN = "sluice-token";
const TIME_OUT_MS = 15000;

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function hasToken() {
  return sessionStorage.getItem(TOKEN) !== null;
}

export function keepToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

export function forgetToken() {
  sessionStorage.removeItem(TOKEN);
}

async function send(method, path, body) {
  const headers = {};
  const token = sessionStorage.getItem(TOKEN);
  if (token !== null) headers["Authorization"] = `Bearer ${token}`;
  if (method !== "GET") headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(`api/${path}`, {
      method, headers, body, cache: "no-store", redirect: "error",
      signal: AbortSignal.timeout(TIME_OUT_MS),
    });
  } catch (error) {
    throw new ApiError(0, "the coordinator does not answer");
  }
  const read = await answer.json().catch(() => null);
  if (!answer.ok || read === null) {
    throw new ApiError(answer.status, read?.error?.message ?? `the coordinator answers ${answer.status}`);
  }
  return read;
}

export function get(path) {
  return send("GET", path);
}

export function post(path, body = {}) {
  return send("POST", path, JSON.stringify(body));
}
