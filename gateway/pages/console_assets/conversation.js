// One conversation: its log, what waits for a person, and what can be done with it.

import { ask, at, get, patch, post, withQuery } from "./api.js";
import { Composer } from "./composer.js";
import { Difference } from "./difference.js";
import { diffs, pictures, texts, turnWords } from "./items.js";
import { markdown } from "./export.js";
import { costs, count, Guard, html, Icon, State, Sure, useEffect, useMemo, useState, useStore } from "./lib.js";
import { Live } from "./live.js";
import { Log } from "./log.js";
import { destroy } from "./overview.js";
import { PANES, Pane } from "./panes.js";
import { address, go, refine, route } from "./router.js";
import { rows } from "./rows.js";
import { Ansi, Code, Markdown } from "./text.js";

const time = (timestamp) => new Date(timestamp?.endsWith("Z") ? timestamp : `${timestamp}Z`).toLocaleTimeString();

// -- items of the log ------------------------------------------------------------------------------------------------

function Message({ item }) {
  const who = { user: "You", agent: "Agent", ostler: "Ostler" }[item.role];
  return html`<article class=${`message ${item.role}`} aria-label=${`${who}, ${item.at ? time(item.at) : "now"}`}>
    <header><strong>${who}</strong>${item.at && html`<time>${time(item.at)}</time>`}</header>
    ${item.thought && html`<details class="thought" open=${item.streaming && !item.text}><summary>Thought</summary><${Markdown} text=${item.thought} streaming=${item.streaming} /></details>`}
    ${item.role === "user" ? html`<div class="said">${item.text}</div>` : html`<${Markdown} text=${item.text} streaming=${item.streaming} />`}
    ${(item.images ?? []).map((url) => html`<${Picture} key=${url.slice(-40)} url=${url} />`)}
    ${item.cut && html`<p class="small">Broken off: ${item.cut}</p>`}
  </article>`;
}

function Picture({ url }) {
  // Only data of the page's own: another address would tell its host who reads this.
  return url.startsWith("data:image/")
    ? html`<img class="picture" src=${url} alt="Picture from the conversation" />`
    : html`<a href=${/^https?:/.test(url) ? url : undefined} target="_blank" rel="noopener noreferrer">${url}</a>`;
}

const TONES = { completed: "good", failed: "bad", rejected: "bad", in_progress: "busy", pending: "busy", cancelled: "calm" };
const WORDS = { in_progress: "running", pending: "announced" };
const SHORT_CHARS = 4000;

function Input({ value }) {
  if (typeof value?.command === "string") return html`<${Code} text=${value.command} path="a.sh" />`;
  return html`<${Code} text=${typeof value === "string" ? value : JSON.stringify(value, null, 2)} path="a.json" />`;
}

function Call({ item, permission }) {
  const changes = diffs(item);
  const found = texts(item);
  const waits = permission?.status === "waiting";
  const open = waits || item.status === "in_progress" || item.failed;
  const output = item.output ?? found.join("\n");
  const result = !output && item.result !== undefined && item.result !== null ? item.result : null;
  return html`<details class="call" open=${open || undefined}>
    <summary>
      <span class=${`state ${waits ? "ask" : (TONES[item.status] ?? "calm")}`}>${waits ? "waiting" : (WORDS[item.status] ?? item.status)}</span>
      <span class="call-title">${item.title}</span>
      ${item.tool && html`<span class="tag">${item.tool}</span>`}
      ${item.risk && item.risk !== "UNKNOWN" && html`<span class="tag">risk ${item.risk.toLowerCase()}</span>`}
    </summary>
    ${(item.locations ?? []).length > 0 && html`<p class="small">${item.locations.map((place) => `${place.path}${place.line ? `:${place.line}` : ""}`).join(", ")}</p>`}
    ${item.input !== undefined && item.input !== null && html`<${Input} value=${item.input} />`}
    ${changes.map((each) => html`<${Difference} key=${each.path} ...${each} />`)}
    ${output && html`<${Long} text=${output} />`}
    ${pictures(item).map((url) => html`<${Picture} key=${url.slice(-40)} url=${url} />`)}
    ${result !== null && html`<${Long} text=${typeof result === "string" ? result : JSON.stringify(result, null, 2)} />`}
    ${item.problem && html`<pre class="problem">${item.problem}</pre>`}
    ${permission && !waits && html`<p class="small">${permission.status} by ${permission.by ?? "unknown"}${permission.reason ? `: ${permission.reason}` : ""}</p>`}
  </details>`;
}

function Long({ text }) {
  const [all, setAll] = useState(false);
  const shown = all ? text : text.slice(0, SHORT_CHARS);
  return html`<div><${Ansi} text=${shown} />${text.length > shown.length && html`<button class="quiet" onClick=${() => setAll(true)}>Show all ${count(text.length)} characters</button>`}</div>`;
}

function Item({ item, permissions, id }) {
  const body = {
    message: () => html`<${Message} item=${item} />`,
    notice: () => html`<${Message} item=${item} />`,
    call: () => html`<${Call} item=${item} permission=${permissions.get(item.permission)} />`,
    turn: () => html`<p class="turn">${turnWords(item)}</p>`,
    error: () => html`<div class="notice bad" role="alert"><strong>${item.code}</strong> ${item.text}</div>`,
    mark: () => html`<div class=${`mark ${item.tone ?? ""}`}>${item.text}${item.more && html`<details><summary>Its last words</summary><pre>${item.more}</pre></details>`}</div>`,
  }[item.kind];
  return html`<div class="item">
    ${body()}
    ${item.id && item.kind !== "turn" && html`<${Tools} id=${id} item=${item} />`}
  </div>`;
}

function Tools({ id, item }) {
  const [problem, setProblem] = useState(null);
  async function fork() {
    try {
      const made = await post(at`/api/conversations/${id}/fork`, { from_event_id: item.id });
      go(["c", made.id]);
    } catch (error) {
      setProblem(error.message);
    }
  }
  const back = () => post(at`/api/conversations/${id}/navigate`, { event_id: item.id });
  return html`<div class="item-tools">
    <a href=${address(["c", id], { event: item.id })} title="Link to this event" aria-label="Link to this event"><${Icon} name="link" /></a>
    <button class="quiet" title="A new conversation that begins with all up to here" onClick=${fork}>Fork from here</button>
    <${Sure} label="Go back to here" again="Continue from here" look="quiet" act=${back} onProblem=${(error) => setProblem(error.message)} />
    ${problem && html`<span class="problem" role="alert">${problem}</span>`}
  </div>`;
}

// -- what waits for a person -----------------------------------------------------------------------------------------

function Permission({ id, request, item }) {
  const [sent, setSent] = useState(null);
  const [problem, setProblem] = useState(null);
  const [reason, setReason] = useState("");
  useEffect(() => setSent(null), [request.status]);
  async function answer(body, name) {
    setSent(name);
    setProblem(null);
    try {
      await post(at`/api/conversations/${id}/events/respond_to_confirmation`, { request_id: request.id, ...body });
    } catch (error) {
      setSent(null);
      setProblem(error.message);
    }
  }
  const input = request.input ?? item?.input;
  const changes = item ? diffs(item) : [];
  const content = (item?.asked?.content ?? []).map((part) => part?.content?.text ?? part?.text).filter(Boolean);
  return html`<div class="permission" role="group" aria-label="Permission request" data-request=${request.id}>
    <h2>${request.title || item?.title || "The agent asks"}</h2>
    <p class="small">${[request.tool_kind, request.security_risk && `risk ${request.security_risk.toLowerCase()}`].filter(Boolean).join(", ")}</p>
    ${input && html`<${Input} value=${input} />`}
    ${content.map((text, index) => html`<${Markdown} key=${index} text=${text} />`)}
    ${changes.map((each) => html`<${Difference} key=${each.path} ...${each} />`)}
    <div class="buttons">
      ${request.options.map(
        (option) => html`<button key=${option.id} class=${option.kind.startsWith("allow") ? "primary" : ""} disabled=${sent !== null}
          onClick=${() => answer({ accept: option.kind.startsWith("allow"), option_id: option.id, reason }, option.id)}>${option.name}</button>`,
      )}
      ${request.options.length === 0 && html`<button class="primary" disabled=${sent !== null} onClick=${() => answer({ accept: true }, "yes")}>Allow</button>`}
    </div>
    <form class="reason" onSubmit=${(event) => { event.preventDefault(); answer({ accept: false, reason }, "reason"); }}>
      <input aria-label="Reason" placeholder="Reason for the agent" value=${reason} maxlength="2000" onInput=${(event) => setReason(event.target.value)} />
      <button disabled=${sent !== null}>Reject with reason</button>
    </form>
    ${sent !== null && html`<p class="small" role="status">Sent. Waiting for the server…</p>`}
    ${problem && html`<p class="notice bad" role="alert">${problem}</p>`}
  </div>`;
}

// -- the head --------------------------------------------------------------------------------------------------------

function Head({ id, log, row, pane, onProblem }) {
  const [editing, setEditing] = useState(false);
  const state = log.state;
  const name = state.title ?? row?.title ?? `Conversation ${id.slice(0, 8)}`;
  async function rename(event) {
    event.preventDefault();
    setEditing(false);
    await patch(at`/api/conversations/${id}`, { title: new FormData(event.target).get("title") }).catch((error) => onProblem(error.message));
  }
  const used = row ? [count(row.tokens) && `${count(row.tokens)} tokens`, costs(row.costs)].filter(Boolean).join(", ") : "";
  return html`<header class="head">
    <div class="head-main">
      ${editing
        ? html`<h1 class="hidden">${name}</h1><form onSubmit=${rename}><input name="title" aria-label="Title" defaultValue=${name} maxlength="200" required autofocus /><button>Save</button></form>`
        : html`<h1><button class="title" title="Rename" onClick=${() => setEditing(true)}>${name}</button></h1>`}
      <p class="small">${[row?.agent, row?.model, row?.workspace, used].filter(Boolean).join(" · ")}</p>
    </div>
    <${State} row=${{ progress: row?.progress, waits: row?.waits, state: row?.state ?? state.agent_phase ?? "none", execution_status: state.execution_status ?? row?.execution_status ?? "idle" }} />
    <nav class="panes" aria-label="Beside the conversation">
      ${Object.entries(PANES).map(([key, label]) => html`<button key=${key} aria-pressed=${pane === key} onClick=${() => refine({ pane: pane === key ? "" : key })}>${label}</button>`)}
      <${More} id=${id} name=${name} onProblem=${onProblem} />
    </nav>
  </header>`;
}

function More({ id, name, onProblem }) {
  const [sure, setSure] = useState(false);
  const act = (call) => call.catch((error) => onProblem(error.message));
  function save(text, type, ending) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = `${name.replace(/[^\w.-]+/g, "-").slice(0, 60) || "conversation"}.${ending}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
  // From the server: the page may not have all of it yet.
  async function events() {
    const found = [];
    let page = null;
    do {
      const answer = await get(withQuery(at`/api/conversations/${id}/events/search`, { limit: 100, page_id: page }));
      found.push(...answer.items);
      page = answer.next_page_id;
    } while (page);
    return found;
  }
  const saveJson = async () => save(JSON.stringify(await events(), null, 2), "application/json", "json");
  const saveMarkdown = async () => save(markdown(await events(), name), "text/markdown", "md");
  async function press() {
    if (!sure) return setSure(true);
    await act(destroy(id).then(() => go([])));
  }
  return html`<details class="menu">
    <summary>More</summary>
    <div class="menu-items">
      <button onClick=${() => act(ask("POST", at`/api/agents/${id}/restart`, {}))}>Restart agent</button>
      <button onClick=${() => act(ask("POST", at`/api/agents/${id}/stop`))}>Stop agent</button>
      <button onClick=${() => act(saveJson())}>Export as JSON</button>
      <button onClick=${() => act(saveMarkdown())}>Export as Markdown</button>
      <button class=${sure ? "danger" : ""} onClick=${press} onBlur=${() => setSure(false)}>${sure ? "Delete? Press again" : "Delete"}</button>
    </div>
  </details>`;
}

function Plan({ entries }) {
  if (!entries?.length) return null;
  const done = entries.filter((each) => each.status === "completed").length;
  return html`<details class="plan"><summary>Plan: ${done} of ${entries.length} done</summary>
    <ol>${entries.map((each, index) => html`<li key=${index} class=${each.status}>${each.content}</li>`)}</ol>
  </details>`;
}

// -- the view --------------------------------------------------------------------------------------------------------

export function Conversation({ id, query }) {
  const live = useMemo(() => new Live(id), [id]);
  useEffect(() => () => live.close(), [live]);
  const whole = useStore(live.store);
  const log = live.ready ? whole : (live.tail ?? whole);
  const connection = useStore(live.connection);
  const gone = useStore(live.gone);
  const row = useStore(rows).get(id);
  const [problem, setProblem] = useState(null);
  const pane = query.get("pane");
  useEffect(() => {
    const press = (event) => {
      if (event.key !== "Escape" || event.defaultPrevented) return;
      if (event.target.closest?.("input, textarea, select")) event.target.blur();
      else if (route.value.query.get("pane")) refine({ pane: "" });
      else go([]);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  if (gone === 4004)
    return html`<p class="empty">This conversation does not exist, or it was deleted. <a href=${address([])}>All conversations</a></p>`;
  const waiting = [...log.permissions.values()].filter((each) => each.status === "waiting");
  const itemOf = (request) => log.items[log.byKey.get(log.calls.get(request.tool_call_id))];
  return html`<section class=${`conversation ${pane ? "with-pane" : ""}`}>
    <${Head} id=${id} log=${log} row=${row} pane=${pane} onProblem=${setProblem} />
    ${connection !== "open" && html`<p class="notice" role="note">${connection === "lost" ? "The connection to this conversation is lost. Trying again…" : "Connecting…"}</p>`}
    ${problem && html`<p class="notice bad" role="alert">${problem} <button class="quiet" onClick=${() => setProblem(null)}>Dismiss</button></p>`}
    <div class="columns">
      <div class="column">
        <${Plan} entries=${log.state.plan} />
        <${Log} items=${log.items} label="Conversation" busy=${!live.ready} key=${live.tail !== null} goal=${query.get("event")}
          draw=${(item) => html`<${Guard} what="This event"><${Item} item=${item} version=${item.version} permissions=${log.permissions} id=${id} /></${Guard}>`} />
        ${waiting.map((request) => html`<${Permission} key=${request.id} id=${id} request=${request} item=${itemOf(request)} />`)}
        <${Composer} id=${id} log=${log} row=${row} />
      </div>
      ${pane && html`<${Pane} key=${pane} name=${pane} id=${id} row=${row} />`}
    </div>
    <p class="hidden" aria-live="polite">${waiting.length ? `${waiting.length} permission requests wait` : ""}</p>
  </section>`;
}

