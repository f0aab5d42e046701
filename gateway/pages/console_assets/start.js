// A new conversation: which agent, where, under which policy, and the first message.

import { get, post, put, withQuery } from "./api.js";
import { html, Icon, useEffect, useMemo, useState, useStore } from "./lib.js";
import { address, go } from "./router.js";
import { rows } from "./rows.js";

// The first one is chosen where the person chooses none.
const POLICIES = {
  always: ["Ask me whenever the agent asks", { kind: "AlwaysConfirm" }],
  risky: ["Ask me before risky actions", { kind: "ConfirmRisky", threshold: "MEDIUM", confirm_unknown: true }],
  never: ["Allow everything that the agent asks for", { kind: "NeverConfirm" }],
};
const LATER_MS = 200;
const DIRECTORIES = 50;

// What the server would log the agent in with, in words.
function credentialWords(found) {
  if (!found) return null;
  const { kind, name, file, source } = found.credential;
  if (kind === "none") return found.would_help.length ? { missing: true, text: `No credential found. ${found.name} needs one of: ${found.would_help.join(", ")}.` } : { text: "Needs no credential." };
  const what = kind === "login" ? `Login found${file ? ` in ${file}` : ""}` : `Key present: ${name ?? file ?? kind}`;
  return { text: `${what}${source ? ` (${source})` : ""}.` };
}

function Credential({ found, onStored }) {
  const [problem, setProblem] = useState(null);
  const words = credentialWords(found);
  if (!words) return null;
  async function store(event) {
    const form = event.target.closest("[data-credential]");
    const name = form.querySelector("select").value;
    const value = form.querySelector("input").value.trim();
    if (!value) return setProblem("Type the key first.");
    try {
      await put("/api/settings/secrets", { name, value });
      setProblem(null);
      onStored();
    } catch (error) {
      setProblem(error.message);
    }
  }
  return html`<div class=${`credential ${words.missing ? "missing" : ""}`}>
    <p class="small">${words.text}</p>
    ${words.missing && html`<div class="reason" data-credential>
      <select aria-label="Name of the key">${found.would_help.map((name) => html`<option key=${name}>${name}</option>`)}</select>
      <input type="password" aria-label="Key" autocomplete="off" placeholder="Key, stored encrypted on the server" />
      <button type="button" onClick=${store}><${Icon} name="key" />Store</button>
    </div>`}
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
  </div>`;
}

function useDirectories(typed) {
  const [found, setFound] = useState([]);
  const parent = typed.replace(/[^/]*$/, "") || "/";
  useEffect(() => {
    if (!parent.startsWith("/")) return undefined;
    const stop = new AbortController();
    const timer = setTimeout(
      () =>
        get(withQuery("/api/file/search_subdirs", { path: parent, limit: DIRECTORIES }), { signal: stop.signal }).then(
          (answer) => setFound(answer.items.map((item) => item.path)),
          () => setFound([]), // not allowed, or not there: the person may type any path
        ),
      LATER_MS,
    );
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [parent]);
  return found;
}

// The models that other conversations of the agent have, and those that it names when it is asked: that starts it.
function Model({ agent }) {
  const known = [...useStore(rows).values()].filter((row) => row.agent === agent && row.model).map((row) => row.model);
  const [found, setFound] = useState([]);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  async function look() {
    setBusy(true);
    setProblem(null);
    try {
      const answer = await post("/api/acp/models", { agent_settings: settingsOf(agent) });
      setFound(answer.available_models);
      if (answer.error) setProblem(answer.error.detail);
    } catch (error) {
      setProblem(error.message);
    }
    setBusy(false);
  }
  const names = new Map([...known.map((name) => [name, ""]), ...found.map((each) => [each.model_id, each.name])]);
  return html`<div class="model">
    <label>Model <input name="model" aria-label="Model" list="models" placeholder="The agent's own choice" autocomplete="off" /></label>
    <datalist id="models">${[...names].map(([id, name]) => html`<option key=${id} value=${id}>${name}</option>`)}</datalist>
    <p class="small"><button type="button" class="quiet" disabled=${busy} onClick=${look}>Ask the agent for its models</button>
      <span role="status" aria-label="Models">${busy ? "Starting the agent…" : found.length ? `${found.length} models` : ""}</span></p>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
  </div>`;
}

const settingsOf = (agent, model) =>
  agent === "openhands" ? { agent_kind: "openhands" } : { agent_kind: "acp", acp_server: agent, ...(model && { acp_model: model }) };

export function Start({ query }) {
  const [agents, setAgents] = useState([]);
  const [agent, setAgent] = useState(query.get("agent") ?? "");
  const [workspace, setWorkspace] = useState(query.get("workspace") ?? "");
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const known = useStore(rows);
  const recent = useMemo(() => {
    const sorted = [...known.values()].sort((a, b) => (a.updated_at < b.updated_at ? 1 : -1));
    return [...new Set(sorted.map((row) => row.workspace))].slice(0, 8);
  }, [known.size]);
  const directories = useDirectories(workspace);
  const load = () => get("/api/agents/credentials").then((answer) => setAgents(answer.agents), (error) => setProblem(error.message));

  useEffect(() => {
    load();
    get("/api/settings").then((settings) => {
      const own = settings.agent_settings;
      const isDemo = (own.acp_command ?? []).includes("supervisor.agents.demo");
      setAgent((chosen) => chosen || (own.agent_kind === "openhands" ? "openhands" : isDemo ? "demo" : own.acp_server));
    }, () => {});
    get("/api/file/home").then((answer) => setWorkspace((typed) => typed || recent[0] || `${answer.home}/`), () => {});
  }, []);

  async function start(event) {
    event.preventDefault();
    if (busy) return;
    const form = new FormData(event.target);
    const message = form.get("message").trim();
    const model = form.get("model")?.trim();
    setBusy(true);
    setProblem(null);
    try {
      const made = await post("/api/conversations", {
        conversation_id: identity.current,
        agent_settings: settingsOf(agent, model),
        workspace: { working_dir: workspace.length > 1 ? workspace.replace(/\/+$/, "") : workspace },
        confirmation_policy: POLICIES[form.get("policy")][1],
        ...(message && { initial_message: { role: "user", content: [{ type: "text", text: message }] } }),
      });
      go(["c", made.id]);
    } catch (error) {
      setProblem(error.message);
      setBusy(false);
    }
  }
  // The same for each attempt, so that one whose answer was lost starts nothing twice.
  const identity = useMemo(() => ({ current: crypto.randomUUID?.() ?? random() }), []);
  const chosen = agents.find((each) => each.agent === agent);
  return html`<section class="start">
    <h1>New conversation</h1>
    <form onSubmit=${start}>
      <label>Agent
        <select aria-label="Agent" value=${agent} onChange=${(event) => setAgent(event.target.value)} required>
          ${!agents.some((each) => each.agent === agent) && agent && html`<option value=${agent}>${agent}</option>`}
          ${agents.map((each) => html`<option key=${each.agent} value=${each.agent}>${each.name}${credentialWords(each)?.missing ? " (no credential)" : ""}</option>`)}
        </select></label>
      <${Credential} found=${chosen} onStored=${load} />
      <label>Workspace
        <input aria-label="Workspace" name="workspace" list="directories" value=${workspace} autocomplete="off" spellcheck="false" required onInput=${(event) => setWorkspace(event.target.value)} />
        <datalist id="directories">${[...new Set([...recent, ...directories])].map((path) => html`<option key=${path} value=${path} />`)}</datalist></label>
      <p class="small">A directory that does not exist is made.</p>
      ${recent.length > 0 && html`<p class="small recent">Recent: ${recent.slice(0, 4).map((path) => html`<button key=${path} type="button" class="quiet" onClick=${() => setWorkspace(path)}>${path}</button>`)}</p>`}
      ${agent !== "openhands" && html`<${Model} key=${agent} agent=${agent} />`}
      <label>Confirmation
        <select name="policy" aria-label="Confirmation">${Object.entries(POLICIES).map(([name, [label]]) => html`<option key=${name} value=${name}>${label}</option>`)}</select></label>
      <label>Message <textarea name="message" aria-label="Message" rows="5" placeholder="What is to be done?"></textarea></label>
      ${problem && html`<p class="notice bad" role="alert">${problem}</p>`}
      <div class="buttons"><button class="primary" disabled=${busy || !agent || !workspace}>Start</button><a class="button" href=${address([])}>Cancel</a></div>
      ${busy && html`<p class="small" role="status">Starting…</p>`}
    </form>
  </section>`;
}

// On pages without TLS from another machine, `crypto.randomUUID` is missing.
function random() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const digits = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return digits.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
