// From frames of the session socket to what a person reads. Pure: no page, no network.
//
// An item has a `key` that stays, a `kind` (message, call, turn, error, notice, mark) and `seq`, that of its first event.

import { count } from "./lib.js";

const QUIET = new Set(["SystemPromptEvent", "StreamingDeltaEvent", "LLMCompletionLogEvent", "TokenEvent", "FinishObservation"]);
// States that are drawn outside of the log, by their keys.
const KEPT = new Set([
  "execution_status", "agent_phase", "title", "plan", "available_commands", "config_options", "modes", "current_mode",
  "agent_state", "stats", "tags", "confirmation_policy", "goal", "mcp_servers",
]); // prettier-ignore
const OUTPUT_CHARS = 200_000; // of a call's streamed output that stay in memory

export function empty() {
  return {
    items: [],
    byKey: new Map(), // key -> index in items
    calls: new Map(), // tool_call_id -> key
    state: {}, // by key of state
    permissions: new Map(), // id -> request
    queued: new Map(), // message id -> text, not prompted yet
    turn: null,
    lastSeq: -1,
  };
}

// Take one frame in; returns the item that changed, or null.
export function take(log, frame) {
  switch (frame.type) {
    case "durable":
      log.lastSeq = frame.seq;
      return event(log, frame.event, frame.seq);
    case "transient":
      return transient(log, frame.event);
    case "item_started":
      return put(log, frame.item_id, {
        kind: "message", role: "agent", text: "", thought: "", streaming: true, attempt: frame.attempt, order: -1,
      }); // prettier-ignore
    case "delta":
      return delta(log, frame);
    case "item_aborted": {
      const item = find(log, frame.item_id);
      if (item) Object.assign(item, { streaming: false, cut: frame.reason });
      return item;
    }
    case "tool_output": {
      const item = find(log, log.calls.get(frame.tool_call_id));
      if (!item) return null;
      const gap = frame.skipped ? `\n[… ${frame.skipped} characters left out …]\n` : "";
      item.output = ((item.output ?? "") + gap + frame.content).slice(-OUTPUT_CHARS);
      return touched(item);
    }
    default:
      return null;
  }
}

function find(log, key) {
  const index = key === undefined ? undefined : log.byKey.get(key);
  return index === undefined ? null : log.items[index];
}

function touched(item) {
  item.version = (item.version ?? 0) + 1;
  return item;
}

function put(log, key, fields) {
  const known = find(log, key);
  if (known) return touched(Object.assign(known, fields));
  const item = { key, version: 0, ...fields };
  log.byKey.set(key, log.items.length);
  log.items.push(item);
  return item;
}

// An answer whose thought began before a call stands after that call.
function toEnd(log, item) {
  const from = log.byKey.get(item.key);
  if (from === log.items.length - 1) return;
  log.items.splice(from, 1);
  log.items.push(item);
  for (let index = from; index < log.items.length; index += 1) log.byKey.set(log.items[index].key, index);
}

function delta(log, frame) {
  const item = find(log, frame.item_id);
  if (!item || frame.attempt < (item.attempt ?? 0) || frame.order <= item.order) return null;
  if (frame.attempt > (item.attempt ?? 0)) Object.assign(item, { text: "", thought: "", attempt: frame.attempt });
  item.order = frame.order;
  if (frame.kind === "reasoning") item.thought += frame.content;
  else if (frame.kind === "text") {
    if (!item.text) toEnd(log, item);
    item.text += frame.content;
  }
  return touched(item);
}

function transient(log, { key, value }) {
  if (key === "full_state") {
    for (const name of ["execution_status", "title", "tags", "confirmation_policy", "stats", "agent_state"])
      if (value[name] !== undefined) log.state[name] = value[name];
    if (value.agent_state?.phase) log.state.agent_phase = value.agent_state.phase;
    for (const each of value.agent_state?.permissions ?? []) permission(log, each);
    return null;
  }
  if (key === "tool_call_progress") {
    const item = find(log, log.calls.get(value.tool_call_id));
    if (item) return touched(Object.assign(item, { title: value.title ?? item.title, parts: value.content ?? item.parts }));
  }
  return null;
}

const textOf = (parts) => (parts ?? []).filter((part) => part.type === "text").map((part) => part.text).join("\n");
const images = (parts) => (parts ?? []).filter((part) => part.type === "image").flatMap((part) => part.image_urls ?? []);

function event(log, found, seq) {
  const base = { seq, id: found.id, at: found.timestamp };
  switch (found.kind) {
    case "ConversationStateUpdateEvent":
      return state(log, found, base);
    case "MessageEvent": {
      const { role, content } = found.llm_message;
      const from = found.source === "environment" ? "ostler" : found.source === "user" || role === "user" ? "user" : "agent";
      if (from === "user") log.queued.set(found.id, textOf(content));
      return put(log, found.id, {
        ...base, kind: from === "ostler" ? "notice" : "message", role: from, text: textOf(content), images: images(content),
        thought: found.reasoning_content ?? find(log, found.id)?.thought ?? "", streaming: false,
      }); // prettier-ignore
    }
    case "ACPToolCallEvent":
      return call(log, found.tool_call_id, {
        ...base, title: found.title, tool: found.tool_kind, status: found.status ?? "in_progress", input: found.raw_input,
        result: found.raw_output, parts: found.content ?? [], failed: found.is_error,
      }); // prettier-ignore
    case "ActionEvent":
      return action(log, found, base);
    case "ObservationEvent": {
      if (found.observation?.kind === "FinishObservation") return null;
      const { content, is_error: failed, kind, ...rest } = found.observation ?? {};
      return call(log, found.tool_call_id, {
        seq, status: failed ? "failed" : "completed", failed, parts: (content ?? []).map((part) => ({ type: "content", content: part })), result: rest.output,
      }); // prettier-ignore
    }
    case "AgentErrorEvent":
      return call(log, found.tool_call_id, { seq, status: "failed", failed: true, problem: found.error });
    case "UserRejectObservation":
      return call(log, found.tool_call_id, { seq, status: "rejected", problem: found.rejection_reason });
    case "ConversationErrorEvent":
    case "ServerErrorEvent":
      return put(log, found.id, { ...base, kind: "error", code: found.code, text: found.detail });
    case "PauseEvent":
      return put(log, found.id, { ...base, kind: "mark", text: "Paused" });
    case "InterruptEvent":
      return put(log, found.id, { ...base, kind: "mark", text: "Interrupted" });
    case "HookExecutionEvent":
      return put(log, found.id, { ...base, kind: "mark", text: `Hook ${found.hook_event_type}: ${found.blocked ? "blocked" : found.success ? "done" : "failed"}${found.reason ? ` – ${found.reason}` : ""}` });
    default:
      return QUIET.has(found.kind) ? null : put(log, found.id, { ...base, kind: "mark", text: found.kind });
  }
}

function action(log, found, base) {
  const written = found.action ?? {};
  const thought = [found.reasoning_content, textOf(found.thought)].filter(Boolean).join("\n\n");
  if (written.kind === "FinishAction") {
    const answer = put(log, found.id, { ...base, kind: "message", role: "agent", text: written.message ?? "", thought, streaming: false });
    toEnd(log, answer);
    return answer;
  }
  const said = written.data?.permission ? "" : textOf(found.thought); // what is asked is drawn with the call
  if (said || found.reasoning_content) put(log, found.id, { ...base, kind: "message", role: "agent", text: said, thought: found.reasoning_content ?? "", streaming: false });
  const { kind, data, ...own } = written;
  const { permission: asked, _permission: alsoAsked, ...input } = data ?? own;
  return call(log, found.tool_call_id, {
    ...base, action_id: found.id, title: found.summary || found.tool_name, tool: found.tool_name, risk: found.security_risk,
    status: "in_progress", input: Object.keys(input).length ? input : null, asked: asked ?? alsoAsked, parts: [],
  }); // prettier-ignore
}

function call(log, id, fields) {
  const key = log.calls.get(id) ?? `call ${id}`;
  log.calls.set(id, key);
  const known = find(log, key);
  const given = Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null && value !== undefined));
  if (known) delete given.seq;
  if (known && given.parts?.length === 0) delete given.parts;
  return put(log, key, { kind: "call", call_id: id, ...given });
}

function permission(log, value) {
  const known = log.permissions.get(value.id);
  log.permissions.set(value.id, { ...known, ...value, options: value.options?.length ? value.options : (known?.options ?? []) });
  const item = find(log, log.calls.get(value.tool_call_id));
  if (item) touched(Object.assign(item, { permission: value.id }));
}

function state(log, { key, value, id, timestamp }, base) {
  if (KEPT.has(key)) {
    log.state[key] = value;
    if (key === "agent_state") for (const each of value.permissions ?? []) permission(log, each);
    return null;
  }
  if (key === "permission_request") {
    permission(log, value);
    return null;
  }
  if (key === "tool_call_details") {
    const item = find(log, log.calls.get(value.tool_call_id));
    if (item) return touched(Object.assign(item, { locations: value.locations ?? item.locations }));
    return null;
  }
  if (key === "action_risk") {
    const item = log.items.find((each) => each.action_id === value.action_id);
    return item ? touched(Object.assign(item, { risk: value.security_risk })) : null;
  }
  if (key === "action_input") {
    const item = log.items.find((each) => each.action_id === value.action_id);
    return item ? touched(Object.assign(item, { input: value.input })) : null;
  }
  if (key === "turn") {
    log.queued.delete(value.joined ?? value.message_id);
    log.turn = value.status === "ended" ? null : value;
    return value.status === "ended" ? put(log, id, { ...base, kind: "turn", reason: value.stop_reason, seconds: value.seconds, usage: value.usage }) : null;
  }
  if (key === "agent_exit")
    return put(log, id, {
      ...base, kind: "mark", tone: value.turn_active ? "bad" : "", text: `The agent's process ended: ${value.signal ? `signal ${value.signal}` : `status ${value.code}`}`, more: (value.last_words ?? []).join("\n"),
    }); // prettier-ignore
  if (key === "agent_retry" || key === "model_call_failed")
    return put(log, id, { ...base, kind: "mark", tone: "bad", text: `A call of the model failed${value.words ? `: ${value.words}` : ""}` });
  return null;
}

const REASONS = { end_turn: "done", cancelled: "cancelled", refusal: "refused", max_tokens: "stopped at the most tokens", failed: "failed", interrupted: "interrupted" };

// Why a turn ended, how long it took and what it used, in words.
export function turnWords({ reason, seconds, usage }) {
  const tokens = (usage?.prompt_tokens ?? 0) + (usage?.completion_tokens ?? 0);
  const time = typeof seconds === "number" ? ` after ${seconds.toFixed(1)} s` : "";
  return [`Turn ${REASONS[reason] ?? reason}${time}`, usage && `${count(tokens) || 0} tokens`, usage?.cost && `$${usage.cost}`].filter(Boolean).join(", ");
}

// The changes of a call's content: [path, before, after].
export function diffs(item) {
  const found = [...(item.parts ?? []), ...(item.asked?.content ?? [])].filter((part) => part?.type === "diff");
  return found.map((part) => ({ path: part.path, before: part.oldText ?? part.old_text ?? "", after: part.newText ?? part.new_text ?? "" }));
}

export function texts(item) {
  return (item.parts ?? [])
    .map((part) => part?.content?.text ?? (part?.type === "terminal" ? (part.output ?? "") : (part?.text ?? "")))
    .filter(Boolean);
}

export function pictures(item) {
  return (item.parts ?? []).flatMap((part) => {
    const given = part?.content ?? part;
    if (given?.image_urls) return given.image_urls;
    return given?.type === "image" && given.data ? [`data:${given.mime_type ?? given.mimeType};base64,${given.data}`] : [];
  });
}
