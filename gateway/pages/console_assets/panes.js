// What stands beside a conversation: changed files, a file, standard error, the protocol's trace.

import { at, ask, get, Socket, withQuery } from "./api.js";
import { Difference } from "./difference.js";
import { bytes, html, Icon, useEffect, useReducer, useState } from "./lib.js";
import { refine } from "./router.js";
import { Ansi, Code } from "./text.js";

export const PANES = { changes: "Changes", file: "File", stderr: "Standard error", trace: "Protocol" };

// Lines or frames that a pane keeps; the server keeps fewer of each process.
const SHOWN = 1000;
const FILE_CHARS = 400_000;

// The answer to a request; `again` asks once more.
function useAnswer(ask, deps) {
  const [found, setFound] = useState({});
  const [turn, again] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    const stop = new AbortController();
    ask(stop.signal).then(
      (value) => setFound({ value }),
      (error) => error.name !== "AbortError" && setFound((known) => ({ ...known, error })),
    );
    return () => stop.abort();
  }, [...deps, turn]);
  return { ...found, again };
}

function Problem({ error }) {
  return error ? html`<p class="notice bad" role="alert">${error.message}</p>` : null;
}

function Changes({ id, row }) {
  const path = row?.workspace;
  const { value, error, again } = useAnswer(
    async (signal) => {
      const answer = await ask("GET", withQuery(at`/api/conversations/${id}/git/changes`, { path }), undefined, { signal, raw: true });
      return { list: await answer.json(), warning: answer.headers.get("Ostler-Warning") };
    },
    [id, path],
  );
  const list = value?.list ?? [];
  return html`<div>
    <p><button onClick=${again}><${Icon} name="rotate-cw" />Look again</button></p>
    <${Problem} error=${error} />
    ${value?.warning && html`<p class="notice">${value.warning}</p>`}
    ${value && !value.warning && list.length === 0 && html`<p class="small">Nothing has changed since the last commit.</p>`}
    ${list.map((each) => html`<${Change} key=${each.path} id=${id} root=${path} change=${each} />`)}
  </div>`;
}

function Change({ id, root, change }) {
  const [open, setOpen] = useState(false);
  const path = change.path.startsWith("/") ? change.path : `${root}/${change.path}`;
  return html`<details class="change" onToggle=${(event) => setOpen(event.target.open)}>
    <summary><span class="tag">${change.status?.toLowerCase()}</span> <span class="mono">${change.path}</span></summary>
    ${open && html`<${FileDifference} id=${id} path=${path} name=${change.path} />`}
    <button class="quiet" onClick=${() => refine({ pane: "file", path })}>Open the file</button>
  </details>`;
}

function FileDifference({ id, path, name }) {
  const { value, error } = useAnswer((signal) => get(withQuery(at`/api/conversations/${id}/git/diff`, { path }), { signal }), [id, path]);
  return html`<div><${Problem} error=${error} />${value && html`<${Difference} path=${name} before=${value.original ?? ""} after=${value.modified ?? ""} />`}</div>`;
}

function File({ id, row }) {
  const path = new URLSearchParams(location.hash.split("?")[1] ?? "").get("path") ?? "";
  const [typed, setTyped] = useState(path || `${row?.workspace ?? ""}/`);
  const address = withQuery(at`/api/conversations/${id}/file/download`, { path });
  const { value, error } = useAnswer(
    async (signal) => {
      if (!path) return null;
      const answer = await ask("GET", address, undefined, { signal, raw: true });
      const size = Number(answer.headers.get("Content-Length"));
      if (size > FILE_CHARS) {
        answer.body?.cancel();
        return { size, text: null };
      }
      const text = await answer.text();
      return { size: text.length, text: text.includes("\0") ? null : text };
    },
    [id, path],
  );
  return html`<div>
    <form class="reason" onSubmit=${(event) => { event.preventDefault(); refine({ path: typed }); }}>
      <input aria-label="Path" value=${typed} onInput=${(event) => setTyped(event.target.value)} /><button>Open</button>
    </form>
    <${Problem} error=${error} />
    ${value?.text === null && html`<p class="small">${bytes(value.size)}: not a text to show here.</p>`}
    ${typeof value?.text === "string" && html`<${Code} text=${value.text} path=${path} />`}
  </div>`;
}

// Lines or frames of the agent, as the server sends them: the last ones, and how many were left out before them.
function useOutput(id, of) {
  const [found, setFound] = useState(null);
  const [ended, setEnded] = useState(null);
  useEffect(() => {
    setFound(null);
    setEnded(null);
    const socket = new Socket(at`/sockets/agents/${id}`, {
      query: () => ({ of }),
      onFrame: (frame) => {
        if (frame.type === "sync") return setFound({ items: [], first: 0, skipped: 0 });
        setFound((known) => {
          const all = [...(known?.items ?? []), ...(frame.lines ?? frame.frames)];
          const gone = Math.max(0, all.length - SHOWN);
          // The number of the first one: what is shown keeps its key when older ones go.
          return { items: all.slice(gone), first: (known?.first ?? 0) + gone, skipped: (known?.skipped ?? 0) + frame.skipped + gone };
        });
      },
      onEnd: (code) => setEnded(code === 4004 ? "The conversation is gone." : "The server does not take the session key."),
    });
    return () => socket.close();
  }, [id, of]);
  return { found, ended };
}

function Left({ found, ended }) {
  return html`${ended && html`<p class="notice bad" role="alert">${ended}</p>`}
    ${found?.skipped > 0 && html`<p class="small">${found.skipped} older ones are not shown.</p>`}`;
}

function Stderr({ id }) {
  const { found, ended } = useOutput(id, "stderr");
  return html`<div><${Left} found=${found} ended=${ended} />
    ${found && (found.items.length ? html`<${Ansi} text=${found.items.join("\n")} />` : html`<p class="small">The agent wrote nothing to its standard error.</p>`)}
  </div>`;
}

function Trace({ id }) {
  const { found, ended } = useOutput(id, "trace");
  return html`<div class="trace"><${Left} found=${found} ended=${ended} />
    ${(found?.items ?? []).map((frame, index) => html`<details key=${found.first + index}>
      <summary><time>${frame.timestamp?.slice(11, 23)}</time> <span class="tag">${frame.direction}</span> <span class="mono">${frame.text.slice(0, 90)}</span></summary>
      <pre>${frame.text}</pre><p class="small">${bytes(frame.size)}</p>
    </details>`)}
    ${found?.items.length === 0 && html`<p class="small">No messages since the agent started.</p>`}
  </div>`;
}

const VIEWS = { changes: Changes, file: File, stderr: Stderr, trace: Trace };

export function Pane({ name, id, row }) {
  const View = VIEWS[name];
  if (!View) return null;
  return html`<aside class="pane" aria-label=${PANES[name]}>
    <header><h2>${PANES[name]}</h2><button class="quiet" aria-label="Close" onClick=${() => refine({ pane: "" })}><${Icon} name="x" /></button></header>
    <div class="pane-body"><${View} id=${id} row=${row} /></div>
  </aside>`;
}
