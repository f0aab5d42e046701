// Requests and sockets of this server, with the session key if it wants one.

const KEY = "ostler.key";

export const session = {
  get key() {
    return sessionStorage.getItem(KEY);
  },
  set key(value) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  },
};

export class ApiError extends Error {
  constructor(status, detail, body) {
    super(detail);
    this.status = status;
    this.body = body;
  }
}

function words(detail) {
  if (typeof detail === "string") return detail;
  // As for a form: each wrong field with what is wrong.
  if (Array.isArray(detail))
    return detail.map((each) => `${(each.loc ?? []).filter((part) => part !== "body").join(".")}: ${each.msg}`).join("; ");
  return JSON.stringify(detail);
}

// Ask the server. `body` is sent as JSON. Raises ApiError with the server's words; status 0: it does not answer.
export async function ask(method, path, body, { signal, raw, headers: more } = {}) {
  const headers = { ...more };
  if (session.key) headers["X-Session-API-Key"] = session.key;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
  if (answer.ok && raw) return answer;
  const text = await answer.text();
  let found = null;
  try {
    found = text ? JSON.parse(text) : null;
  } catch {
    // Not JSON: a proxy's page, or the text of a file.
  }
  if (!answer.ok) throw new ApiError(answer.status, found?.detail ? words(found.detail) : `${answer.status} ${answer.statusText}`, found);
  return found ?? text;
}

export const get = (path, more) => ask("GET", path, undefined, more);
export const post = (path, body = {}, more) => ask("POST", path, body, more);
export const patch = (path, body) => ask("PATCH", path, body);
export const put = (path, body) => ask("PUT", path, body);
export const remove = (path) => ask("DELETE", path);

// A path with its parts escaped: at`/api/conversations/${id}`.
export function at(strings, ...parts) {
  return strings.reduce((path, text, index) => path + encodeURIComponent(parts[index - 1]) + text);
}

export function withQuery(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

const AGAIN_MS = 250;
const AGAIN_MOST_MS = 4000;
const FINAL = new Set([4001, 4004]);

// A WebSocket that connects again until it is closed. `query()` is asked at each attempt, so that it can resume.
// `onState` gets "connecting", "open", or "lost"; `onEnd` the code of an end for good: 4001 wrong key, 4004 no such thing.
export class Socket {
  #socket = null;
  #closed = false;
  #tries = 0;
  #timer = 0;

  constructor(path, { query = () => ({}), onFrame, onState = () => {}, onEnd = () => {} }) {
    Object.assign(this, { path, query, onFrame, onState, onEnd });
    this.online = () => this.retry();
    addEventListener("online", this.online);
    this.#connect();
  }

  #connect() {
    if (this.#closed) return;
    this.onState("connecting");
    const address = new URL(withQuery(this.path, this.query()), location.href);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = (this.#socket = new WebSocket(address));
    socket.onopen = () => {
      if (session.key) socket.send(JSON.stringify({ type: "auth", session_api_key: session.key }));
    };
    socket.onmessage = ({ data }) => {
      if (socket !== this.#socket) return;
      if (this.#tries !== -1) {
        this.#tries = -1;
        this.onState("open");
      }
      this.onFrame(JSON.parse(data));
    };
    socket.onclose = ({ code }) => {
      if (socket !== this.#socket || this.#closed) return;
      this.#socket = null;
      this.onState("lost");
      if (FINAL.has(code)) {
        this.#closed = true;
        this.onEnd(code);
        return;
      }
      this.#tries = Math.max(this.#tries, 0);
      const wait = Math.min(AGAIN_MS * 2 ** this.#tries, AGAIN_MOST_MS);
      this.#tries += 1;
      this.#timer = setTimeout(() => this.#connect(), wait);
    };
  }

  send(value) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(value));
    return true;
  }

  // Give up the present connection and connect at once.
  retry() {
    clearTimeout(this.#timer);
    const old = this.#socket;
    this.#socket = null;
    old?.close();
    this.onState("lost");
    this.#connect();
  }

  close() {
    this.#closed = true;
    clearTimeout(this.#timer);
    removeEventListener("online", this.online);
    this.#socket?.close();
  }
}
