// All conversations in a table: what needs a person comes first.

import { ask, at, post, remove, withQuery } from "./api.js";
import { costs, count, html, Icon, bytes, since, span, State, stateOf, Store, useEffect, useLayoutEffect, useMemo, useRef, useState, useStore, whileSeen } from "./lib.js";
import { address, go, refine } from "./router.js";
import { connection, needs, rows, samplesOf } from "./rows.js";

const SORTS = {
  attention: ["Needs attention", (row) => -needs(row)],
  updated: ["Last change", () => 0],
  title: ["Title", (row) => (row.title ?? "").toLowerCase()],
  agent: ["Agent", (row) => row.agent],
  memory: ["Memory", (row) => -(row.rss_bytes ?? 0)],
  tokens: ["Tokens", (row) => -row.tokens],
};

function compare(sort) {
  const of = (SORTS[sort] ?? SORTS.attention)[1];
  return (a, b) => {
    const [left, right] = [of(a), of(b)];
    if (left !== right) return left < right ? -1 : 1;
    // Then the ones that changed last, and by their ids so that equal ones stay where they are.
    if (a.updated_at !== b.updated_at) return a.updated_at > b.updated_at ? -1 : 1;
    return a.id < b.id ? -1 : 1;
  };
}

function matches(row, { text, agent, state, workspace }) {
  if (agent && row.agent !== agent) return false;
  if (state && stateOf(row).text !== state) return false;
  if (workspace && row.workspace !== workspace) return false;
  if (!text) return true;
  return [row.title, row.workspace, row.agent, row.model, row.id].some((part) => part?.toLowerCase().includes(text.toLowerCase()));
}

export function title(row) {
  return row.title || `Conversation ${row.id.slice(0, 8)}`;
}

// -- one row ---------------------------------------------------------------------------------------------------------

export function Spark({ samples, of, label }) {
  if (samples.length < 2) return null;
  const values = samples.map(of);
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, index) => `${((index / (values.length - 1)) * 60).toFixed(1)},${(15 - (value / most) * 14).toFixed(1)}`);
  return html`<svg class="spark" viewBox="0 0 60 16" role="img" aria-label=${label}><polyline points=${points.join(" ")} /></svg>`;
}

// The permission that waits, with the agent's own options. Pressed once, it waits for the server's word.
export function Answers({ row, onProblem }) {
  const [sent, setSent] = useState(null);
  const { request_id: requestId, options, title: asked, number } = row.waits;
  async function choose(option) {
    setSent(option.id);
    try {
      await post(at`/api/conversations/${row.id}/events/respond_to_confirmation`, {
        accept: option.kind.startsWith("allow"),
        request_id: requestId,
        option_id: option.id,
      });
    } catch (error) {
      setSent(null);
      onProblem(error.message);
    }
  }
  return html`<div class="answers" role="group" aria-label="Permission request">
    <span class="asked" title=${asked}>${asked}${number > 1 && ` (and ${number - 1} more)`}</span>
    ${options.map(
      (option) => html`<button
        key=${option.id}
        class=${option.kind.startsWith("allow") ? "primary" : ""}
        disabled=${sent !== null}
        onClick=${(event) => {
          event.stopPropagation();
          choose(option);
        }}
      >
        ${option.name}
      </button>`,
    )}
    ${options.length === 0 && html`<a class="button" href=${address(["c", row.id])}>Open to answer</a>`}
  </div>`;
}

function Row({ row, here, picked, onPick, onProblem }) {
  const samples = samplesOf(row);
  const open = address(["c", row.id]);
  return html`<tr class=${here ? "here" : ""} data-id=${row.id} aria-selected=${here}>
    <td class="pick"><input type="checkbox" aria-label=${`Select ${title(row)}`} checked=${picked} onChange=${() => onPick(row.id)} /></td>
    <td class="main-cell">
      <a href=${open} class="row-title">${title(row)}</a>
      <div class="where" title=${row.workspace}>${row.workspace}</div>
      ${row.waits && html`<${Answers} key=${row.waits.request_id} row=${row} onProblem=${onProblem} />`}
    </td>
    <td data-label="Agent">${row.agent}${row.model && html`<div class="small">${row.model}</div>`}</td>
    <td data-label="State">
      <${State} row=${row} />
      ${row.queue > 0 && html`<div class="small">${row.queue} queued</div>`}
      ${row.last_exit && html`<div class="small" title="How its last process ended">last process ${row.last_exit}</div>`}
    </td>
    <td class="number" data-label="Memory"><${Spark} samples=${samples} of=${(each) => each.rss} label="Memory of the last two minutes" /> ${bytes(row.rss_bytes)}</td>
    <td class="number" data-label="Processor"><${Spark} samples=${samples} of=${(each) => each.cpu} label="Processor of the last two minutes" /> ${row.cpu === null ? "" : `${Math.round(row.cpu * 100)} %`}</td>
    <td class="number" data-label="Restarts">${row.restarts || ""}</td>
    <td class="number" data-label="Tokens">${count(row.tokens)}</td>
    <td class="number" data-label="Cost">${costs(row.costs)}</td>
    <td class="number" data-label="Last word">${span(since(row.last_event_at))}</td>
  </tr>`;
}

// -- the table -------------------------------------------------------------------------------------------------------

// The order of rows stays while a person may be about to press something in it.
function useCalmOrder(found, sort) {
  const calm = useRef(false);
  const kept = useRef([]);
  const wanted = useMemo(() => [...found].sort(compare(sort)).map((row) => row.id), [found, sort]);
  const known = new Map(found.map((row) => [row.id, row]));
  const same = useRef(sort);
  if (!calm.current || same.current !== sort) {
    kept.current = wanted;
  } else {
    // What is new comes last, what is gone leaves.
    const had = new Set(kept.current);
    kept.current = [...kept.current.filter((id) => known.has(id)), ...wanted.filter((id) => !had.has(id))];
  }
  same.current = sort;
  const moved = kept.current.some((id, index) => id !== wanted[index]);
  return { order: kept.current.map((id) => known.get(id)), moved, calm };
}

const PAGE = 200;

export function Overview({ query }) {
  const found = useStore(rows);
  const state = useStore(connection);
  const [picked, setPicked] = useState(new Set());
  const [problem, setProblem] = useState(null);
  const [here, setHere] = useState(null);
  const [shown, setShown] = useState(PAGE);
  const [, again] = useState(0);
  const search = useRef(null);
  const wanted = Object.fromEntries(query);
  const all = [...found.values()];
  const matching = all.filter((row) => matches(row, wanted));
  const { order, moved, calm } = useCalmOrder(matching, wanted.sort ?? "attention");

  useEffect(() => {
    // Times since the last word grow although nothing happens.
    return whileSeen(() => again((tick) => tick + 1), 5000);
  }, []);

  // Before the next key is pressed: it is about what is shown.
  useLayoutEffect(() => {
    function press(event) {
      if (event.target.closest?.("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) {
        if (event.key === "Escape") event.target.blur?.();
        return;
      }
      const index = order.findIndex((row) => row.id === here);
      const to = { j: Math.min(index + 1, order.length - 1), k: Math.max(index - 1, 0) }[event.key];
      if (to !== undefined && order[to]) {
        setHere(order[to].id);
        document.querySelector(`tr[data-id="${order[to].id}"]`)?.scrollIntoView({ block: "nearest" });
      } else if (event.key === "/") {
        event.preventDefault();
        search.current?.focus();
      } else if (event.key === "Enter" && here && event.target === document.body) {
        go(["c", here]);
      } else if (event.key === "Escape") {
        setHere(null);
        setPicked(new Set());
      } else if (event.key === "n") {
        go(["new"]);
      }
    }
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });

  function pick(id) {
    const next = new Set(picked);
    if (!next.delete(id)) next.add(id);
    setPicked(next);
  }

  const choices = (of) => [...new Set(all.map(of).filter(Boolean))].sort();
  const filter = (name, label, values) => html`<label class="filter">
    <span>${label}</span>
    <select value=${wanted[name] ?? ""} onChange=${(event) => refine({ [name]: event.target.value })}>
      <option value="">all</option>
      ${values.map((value) => html`<option key=${value} value=${value}>${value}</option>`)}
    </select>
  </label>`;

  return html`<section class="overview">
    <h1 class="hidden">Conversations</h1>
    <div class="bar">
      <label class="search"><${Icon} name="search" /><input
        ref=${search} type="search" aria-label="Search" placeholder="Search ( / )" value=${wanted.text ?? ""}
        onInput=${(event) => refine({ text: event.target.value })} /></label>
      ${filter("state", "State", choices((row) => stateOf(row).text))}
      ${filter("agent", "Agent", choices((row) => row.agent))}
      ${filter("workspace", "Workspace", choices((row) => row.workspace))}
      <label class="filter"><span>Sort by</span>
        <select value=${wanted.sort ?? "attention"} onChange=${(event) => refine({ sort: event.target.value })}>
          ${Object.entries(SORTS).map(([name, [label]]) => html`<option key=${name} value=${name}>${label}</option>`)}
        </select></label>
      ${moved && html`<button class="quiet" onClick=${() => { calm.current = false; again((tick) => tick + 1); }}>Put in order again</button>`}
    </div>
    <${Bulk} picked=${[...picked].filter((id) => found.has(id))} onDone=${() => setPicked(new Set())} onProblem=${setProblem} />
    ${problem && html`<p class="notice bad" role="alert">${problem} <button class="quiet" onClick=${() => setProblem(null)}>Dismiss</button></p>`}
    <${Undo} onProblem=${setProblem} />
    <div class="table-scroll"
      onPointerEnter=${() => (calm.current = true)} onPointerLeave=${() => { calm.current = false; again((tick) => tick + 1); }}
      onFocusIn=${() => (calm.current = true)} onFocusOut=${() => (calm.current = false)}>
      <table aria-label="Conversations" aria-busy=${!rows.ready} class=${state === "open" ? "" : "stale"}>
        <thead><tr>
          <th class="pick"><input type="checkbox" aria-label="Select all" checked=${picked.size > 0 && picked.size === order.length}
            onChange=${() => setPicked(picked.size ? new Set() : new Set(order.map((row) => row.id)))} /></th>
          <th>Conversation</th><th>Agent</th><th>State</th><th class="number">Memory</th><th class="number">Processor</th>
          <th class="number">Restarts</th><th class="number">Tokens</th><th class="number">Cost</th><th class="number">Last word</th>
        </tr></thead>
        <tbody>
          ${order.slice(0, shown).map((row) => html`<${Row} key=${row.id} row=${row} here=${row.id === here} picked=${picked.has(row.id)} onPick=${pick} onProblem=${setProblem} />`)}
        </tbody>
      </table>
      ${order.length > shown && html`<button class="quiet" onClick=${() => setShown(shown + PAGE)}>Show ${Math.min(PAGE, order.length - shown)} more of ${order.length}</button>`}
      ${rows.ready && all.length === 0 && html`<div class="empty"><h2>No conversations yet</h2><p>Choose an agent, a directory, and what to do.</p><a class="button primary" href=${address(["new"])}>Start the first one</a></div>`}
      ${rows.ready && all.length > 0 && order.length === 0 && html`<p class="empty">No conversation matches. <button class="quiet" onClick=${() => refine({ text: "", agent: "", state: "", workspace: "" })}>Show all</button></p>`}
    </div>
  </section>`;
}

// -- deletions, which can be undone ----------------------------------------------------------------------------------

const UNDO_SECONDS = 60;

// The ids of those that can still be undone, and until when by this machine's clock. A reload keeps them.
const KEPT = "ostler.deleted";
const deleted = new Store(new Map());

function keep(id, until) {
  const left = until - Date.now();
  if (left <= 0) return;
  deleted.set(new Map(deleted.value).set(id, until));
  setTimeout(forget, left, id);
}

function forget(id) {
  deleted.set(new Map([...deleted.value].filter(([each]) => each !== id)));
}

for (const [id, until] of JSON.parse(sessionStorage.getItem(KEPT) ?? "[]")) keep(id, until);
deleted.follow(() => sessionStorage.setItem(KEPT, JSON.stringify([...deleted.value])));

export async function destroy(id) {
  await remove(withQuery(at`/api/conversations/${id}`, { undo_seconds: UNDO_SECONDS }));
  keep(id, Date.now() + UNDO_SECONDS * 1000);
}

function Undo({ onProblem }) {
  const ids = [...useStore(deleted).keys()];
  if (ids.length === 0) return null;
  const restore = (id) => post(at`/api/conversations/${id}/restore`).catch((error) => onProblem(error.message)).finally(() => forget(id));
  return html`<p class="notice" role="status">${ids.length > 1 ? `${ids.length} deleted.` : "Deleted."} <button onClick=${() => ids.forEach(restore)}>Undo</button></p>`;
}

// -- several at once -------------------------------------------------------------------------------------------------

const ACTIONS = [
  ["Interrupt", (id) => post(at`/api/conversations/${id}/interrupt`)],
  ["Pause", (id) => post(at`/api/conversations/${id}/pause`)],
  ["Resume", (id) => post(at`/api/conversations/${id}/run`)],
  ["Restart agent", (id) => ask("POST", at`/api/agents/${id}/restart`, {})],
  ["Stop agent", (id) => ask("POST", at`/api/agents/${id}/stop`)],
  ["Delete", destroy, true],
];
const AT_ONCE = 4;

function Bulk({ picked, onDone, onProblem }) {
  const [busy, setBusy] = useState(null);
  const [sure, setSure] = useState(null);
  useEffect(() => setSure(null), [picked.length]);
  if (picked.length === 0) return null;
  async function run([name, act, asks]) {
    if (asks && sure !== name) {
      setSure(name); // what destroys takes a second press
      return;
    }
    setBusy(name);
    const waiting = [...picked];
    const problems = [];
    await Promise.all(
      Array.from({ length: AT_ONCE }, async () => {
        for (let id; (id = waiting.pop()); ) await act(id).catch((error) => problems.push(error.message));
      }),
    );
    setBusy(null);
    if (problems.length) onProblem(`${name}: ${problems.length} of ${picked.length} failed. ${problems[0]}`);
    else onDone();
  }
  return html`<div class="bulk" role="toolbar" aria-label="Selected conversations">
    <span>${picked.length} selected</span>
    ${ACTIONS.map(
      (action) => html`<button key=${action[0]} class=${sure === action[0] ? "danger" : ""} disabled=${busy !== null} onClick=${() => run(action)}>
        ${sure === action[0] ? `${action[0]} ${picked.length}? Press again` : action[0]}
      </button>`,
    )}
    <button class="quiet" onClick=${onDone}>Clear</button>
  </div>`;
}
