// The rows of all conversations, kept up to date by /sockets/overview, and how sure that is.

import { Socket } from "./api.js";
import { Store, whileSeen } from "./lib.js";

// The server sends something at least every half second; after this it counts as lost.
const SILENCE_MS = 1000;
// After so much silence the connection is given up: nothing else tells of one that the network forgot.
const GIVEN_UP_MS = 4000;
// Samples of memory and processor time that a row keeps for its sparkline: two minutes.
const SAMPLES = 60;

export const rows = new Store(new Map());
// "connecting", "open", "lost", or "refused" for a wrong key.
export const connection = new Store("connecting");

let socket = null;
let known = { version: null, epoch: null };
let arriving = null;
let heard = 0;
let unwatch = () => {};

export function samplesOf(row) {
  return row.samples ?? [];
}

function put(row) {
  const before = rows.value.get(row.id);
  const samples = before?.samples ?? [];
  if (row.rss_bytes !== null && (before?.rss_bytes !== row.rss_bytes || before?.cpu !== row.cpu)) {
    samples.push({ rss: row.rss_bytes, cpu: row.cpu ?? 0 });
    if (samples.length > SAMPLES) samples.shift();
  }
  row.samples = samples;
  rows.value.set(row.id, row);
}

function take(frame) {
  heard = performance.now();
  if (connection.value !== "open") connection.set("open");
  if (frame.type === "rows") {
    arriving ??= new Map();
    for (const row of frame.rows) arriving.set(row.id, row);
  } else if (frame.type === "sync") {
    known = { version: frame.version, epoch: frame.epoch };
    if (frame.all) {
      const found = arriving ?? new Map();
      for (const id of [...rows.value.keys()]) if (!found.has(id)) rows.value.delete(id);
      for (const row of found.values()) put(row);
      arriving = null;
    }
    rows.ready = true;
    rows.set(rows.value); // at once: a request that comes in a moment is new
  } else if (frame.type === "changes") {
    known.version = frame.version;
    for (const row of frame.rows) put(row);
    for (const id of frame.gone) rows.value.delete(id);
    rows.touch();
  }
}

export function follow(onRefused) {
  stop();
  socket = new Socket("/sockets/overview", {
    query: () => (known.epoch ? known : {}),
    onFrame: take,
    onState: (state) => {
      if (state === "connecting") arriving = null;
      if (state !== "open") connection.set(state === "lost" ? "lost" : connection.value === "lost" ? "lost" : "connecting");
    },
    onEnd: (code) => {
      connection.set("refused");
      if (code === 4001) onRefused();
    },
  });
  addEventListener("offline", lost);
  unwatch = whileSeen(() => {
    // A server that is stopped closes nothing: its silence tells.
    const silent = performance.now() - heard;
    if (connection.value === "open" && silent > SILENCE_MS) connection.set("lost");
    if (silent > GIVEN_UP_MS) {
      heard = performance.now();
      socket.retry();
    }
  }, 200);
}

function lost() {
  connection.set("lost");
}

export function stop() {
  socket?.close();
  unwatch();
  removeEventListener("offline", lost);
}

// -- what needs a person ---------------------------------------------------------------------------------------------

export function needs(row) {
  if (row.waits || row.execution_status === "waiting_for_confirmation") return 3;
  if (row.state === "parked") return 2;
  if (row.execution_status === "error" || row.execution_status === "stuck") return 1;
  return 0;
}
