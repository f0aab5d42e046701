// Preact with htm's templates and hooks, and the few helpers that every view needs.

import { Component, h, render, Fragment } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { h, render, Fragment };
export { useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "./vendor/hooks.js";
import { useLayoutEffect, useReducer, useState } from "./vendor/hooks.js";

export const html = htm.bind(h);

// A value that views follow. `changed` is told after `set`, and at most once for each frame of the screen after `touch`.
export class Store {
  #listeners = new Set();
  #frame = 0;

  constructor(value) {
    this.value = value;
    this.version = 0;
  }

  set(value) {
    this.value = value;
    this.#tell();
  }

  // For a value that was changed in its place.
  touch() {
    if (this.#frame) return;
    // Hidden pages draw no frames, and still have to count what waits.
    const later = document.hidden ? (call) => setTimeout(call, 250) : requestAnimationFrame;
    this.#frame = later(() => {
      this.#frame = 0;
      this.#tell();
    });
  }

  follow(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #tell() {
    this.version += 1;
    for (const listener of [...this.#listeners]) listener();
  }
}

// The value of a store; the view is drawn again when it changes.
export function useStore(store) {
  const [, again] = useReducer((count) => count + 1, 0);
  const drawn = store.version;
  useLayoutEffect(() => {
    // It may have changed between drawing and following.
    if (store.version !== drawn) again();
    return store.follow(again);
  }, [store]);
  return store.value;
}

// Call it every so many milliseconds while the page is seen, and once when it is seen again; returns what ends that.
export function whileSeen(act, ms) {
  let timer = 0;
  function look() {
    clearInterval(timer);
    timer = document.hidden ? 0 : setInterval(act, ms);
  }
  function turned() {
    look();
    if (!document.hidden) act();
  }
  look();
  document.addEventListener("visibilitychange", turned);
  return () => {
    clearInterval(timer);
    document.removeEventListener("visibilitychange", turned);
  };
}

// After so many milliseconds, and not before the page is seen.
export async function later(ms) {
  await new Promise((resolve) => setTimeout(resolve, ms));
  while (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

export function Icon({ name }) {
  return html`<svg class="icon" aria-hidden="true"><use href=${`/console/vendor/icons.svg#${name}`} /></svg>`;
}

// Shows what is inside, or says that it could not: one odd event must not take the page.
export class Guard extends Component {
  componentDidCatch(error) {
    console.error(error);
    this.setState({ failed: true });
  }

  render({ what, children }, { failed }) {
    return failed ? html`<p class="notice bad">${what} could not be shown.</p>` : children;
  }
}

// -- words for figures ----------------------------------------------------------------------------------------------

const UNITS = ["B", "KB", "MB", "GB", "TB"];

export function bytes(count) {
  if (count === null || count === undefined) return "";
  let unit = 0;
  while (count >= 1000 && unit < UNITS.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${UNITS[unit]}`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "";
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} d`;
}

// Seconds since a time of the server's, by this machine's clock.
export function since(timestamp) {
  const then = Date.parse(timestamp?.endsWith("Z") || /[+-]\d\d:\d\d$/.test(timestamp ?? "") ? timestamp : `${timestamp}Z`);
  return (Date.now() - then) / 1000;
}

export function count(number) {
  if (!number) return "";
  if (number < 1000) return String(number);
  if (number < 1e6) return `${(number / 1000).toFixed(number < 1e4 ? 1 : 0)}k`;
  return `${(number / 1e6).toFixed(1)}M`;
}

export function costs(given) {
  return Object.entries(given ?? {})
    .map(([currency, sum]) => (currency === "USD" ? `$${sum.toFixed(sum < 1 ? 3 : 2)}` : `${sum.toFixed(2)} ${currency}`))
    .join(" + ");
}

// What a person reads of a state, and the colour that it has. Unknown words are shown as they are, in grey.
const STATES = {
  waiting: ["waiting for permission", "ask"],
  waiting_for_confirmation: ["waiting for permission", "ask"],
  error: ["failed", "bad"],
  stuck: ["stuck", "bad"],
  parked: ["parked", "bad"],
  running: ["running", "busy"],
  cancelling: ["cancelling", "busy"],
  starting: ["starting", "busy"],
  restarting: ["restarting", "busy"],
  installing: ["installing", "busy"],
  queued: ["queued", "busy"],
  ready: ["ready", "good"],
  finished: ["finished", "good"],
  idle: ["idle", "calm"],
  paused: ["paused", "calm"],
  hibernated: ["hibernated", "calm"],
  stopped: ["stopped", "calm"],
  exited: ["stopped", "calm"],
  none: ["no process", "calm"],
  deleting: ["being deleted", "calm"],
};

export function stateOf(row) {
  const waits = row.waits || row.execution_status === "waiting_for_confirmation";
  const failed = row.execution_status === "error" || row.execution_status === "stuck";
  // The agent's own state says more than that of the run, unless the run needs a person.
  const word = waits ? "waiting" : row.state === "parked" ? "parked" : failed ? row.execution_status : row.state;
  const shown = word === "none" || word === "exited" || word === "stopped" ? row.execution_status : word;
  const [text, tone] = STATES[shown] ?? [shown, "calm"];
  return { text, tone };
}

export function State({ row }) {
  const { text, tone } = stateOf(row);
  return html`<span class=${`state ${tone}`}>${text}</span>${row.progress && html`<div class="small">${row.progress}</div>`}`;
}

// A button whose second press counts. It stays as it is until that is done. `again`: what the second press does, if the
// label does not say it. `look`: its class before the first.
export function Sure({ label, again = label, look = "", act, onProblem }) {
  const [sure, setSure] = useState(false);
  const [busy, setBusy] = useState(false);
  async function press() {
    if (!sure) return setSure(true);
    setBusy(true);
    await act().catch((error) => onProblem(error));
    setBusy(false);
    setSure(false);
  }
  return html`<button class=${sure ? "danger" : look} disabled=${busy} onClick=${press} onBlur=${() => setSure(busy)}>${sure ? `${again}? Press again` : label}</button>`;
}
