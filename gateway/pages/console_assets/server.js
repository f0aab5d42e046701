// The server: its state, limits and figures; secrets, MCP servers, profiles, settings.

import { get, patch, post, put, remove, at } from "./api.js";
import { Chart } from "./chart.js";
import { Field, Problem, SIMPLE, usePolled } from "./forms.js";
import { bytes, costs, count, html, Icon, later, span, Sure, useState } from "./lib.js";
import { Profiles } from "./profiles.js";
import { address } from "./router.js";

const PARTS = { status: "Status", metrics: "Metrics", secrets: "Secrets", mcp: "MCP servers", profiles: "Profiles", settings: "Settings" };
const AGAIN_MS = 5000;
const LOGIN_MS = 1000;

function Facts({ facts }) {
  return html`<dl class="facts">${facts.filter(([, value]) => value !== undefined).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value ?? "unknown"}</dd></div>`)}</dl>`;
}

function Status() {
  const { value, error } = usePolled("/api/status", AGAIN_MS);
  if (!value) return html`<${Problem} error=${error} />`;
  const { limits, agents, descriptors, journal, totals, usage } = value;
  const share = ({ used, share: most }) => `${used} of ${most}`;
  return html`<div>
    <${Problem} error=${error} />
    ${!journal.writable && html`<p class="notice bad" role="alert">Events cannot be stored: ${journal.reason}</p>`}
    ${value.secret_key.problem && html`<p class="notice bad" role="alert">${value.secret_key.problem}</p>`}
    <h2>Server</h2>
    <${Facts} facts=${[
      ["State", value.status], ["Running for", span(value.uptime)], ["Version", value.version], ["Python", value.python_version],
      ["State directory", value.state], ["Containment", value.containment], ["Master key", value.secret_key.source], ["Session key", value.session_key_wanted ? "required" : "not required"],
    ]} />
    <h2>Now</h2>
    <${Facts} facts=${[
      ["Conversations", `${value.conversations.total} (${value.conversations.loaded} loaded)`], ["Agents", `${agents.live} running, ${agents.starting} starting, ${agents.queued} queued, ${agents.hibernated} hibernated, ${agents.parked} parked`],
      ["Turns", value.turns.running], ["Memory of agents", bytes(agents.rss_bytes)], ["Tokens", count(usage.tokens) || "0"], ["Cost", costs(usage.costs) || "none reported"],
    ]} />
    <h2>Since the start</h2>
    <${Facts} facts=${[
      ["Agent starts", totals.starts], ["Restarts", totals.restarts], ["Crashes", totals.crashes], ["Warden restarts", totals.warden_restarts],
      ["Turns", Object.entries(totals.turns).map(([name, number]) => `${number} ${name.replaceAll("_", " ")}`).join(", ") || "none"],
    ]} />
    <h2>Limits</h2>
    <${Facts} facts=${[
      ["Agents", limits.agents ?? "by memory"], ["Memory", limits.memory_bytes === null ? "none" : bytes(limits.memory_bytes)], ["Starts at once", limits.starts],
      ["Hibernated after", limits.idle_seconds === null ? "never" : span(limits.idle_seconds)], ["When full", limits.when_full],
      ["Descriptors", `${descriptors.used} of ${descriptors.limit}`], ["for agents", share(descriptors.agents)], ["for terminals", share(descriptors.terminals)], ["for connections", share(descriptors.connections)],
    ]} />
  </div>`;
}

function Metrics() {
  const { value, error } = usePolled("/api/metrics/history", AGAIN_MS);
  const samples = value?.samples ?? [];
  if (samples.length < 2) return html`<div><${Problem} error=${error} />${value && html`<p class="small">The charts begin with the second sample, in some seconds.</p>`}</div>`;
  const times = samples.map((each) => each.time);
  const line = (name, of) => ({ name, values: samples.map(of) });
  return html`<div><${Problem} error=${error} />
    <${Chart} title="Agents" times=${times} lines=${[line("live", (s) => s.live_agents), line("queued", (s) => s.queued), line("turns running", (s) => s.turns_running)]} />
    <${Chart} title="Memory of agents (MB)" times=${times} lines=${[line("agents", (s) => s.rss_bytes / 1e6)]} />
    <${Chart} title="Starts, restarts and crashes" times=${times} lines=${[line("starts", (s) => s.starts_total), line("restarts", (s) => s.restarts_total), line("crashes", (s) => s.crashes_total)]} />
    <${Chart} title="Tokens" times=${times} lines=${[line("tokens", (s) => s.tokens)]} />
  </div>`;
}

function Secrets() {
  const { value, error, again } = usePolled("/api/secrets");
  const [problem, setProblem] = useState(null);
  async function store(event) {
    event.preventDefault();
    const form = event.target;
    const given = Object.fromEntries(new FormData(form));
    try {
      await put("/api/settings/secrets", { name: given.name.trim(), value: given.value });
      form.reset();
      setProblem(null);
      again();
    } catch (failure) {
      setProblem(failure);
    }
  }
  return html`<div>
    <${Problem} error=${error ?? problem} />
    ${(value?.problems ?? []).map((each, index) => html`<p key=${index} class="notice bad">${each.message ?? JSON.stringify(each)}</p>`)}
    <table aria-label="Secrets"><thead><tr><th>Name</th><th>Source</th><th><span class="hidden">Actions</span></th></tr></thead><tbody>
      ${(value?.secrets ?? []).map((each) => html`<tr key=${`${each.name} ${each.source}`}><td class="mono">${each.name}</td><td>${each.source}</td>
        <td>${each.source === "store" || each.removable !== false ? html`<${Sure} label="Remove" act=${() => remove(at`/api/settings/secrets/${each.name}`).then(again)} onProblem=${setProblem} />` : ""}</td></tr>`)}
    </tbody></table>
    ${value?.secrets.length === 0 && html`<p class="small">No secrets are stored.</p>`}
    <form class="reason" onSubmit=${store}>
      <input name="name" aria-label="Name" placeholder="NAME" pattern="[A-Za-z_][A-Za-z0-9_]*" required autocomplete="off" />
      <input name="value" aria-label="Value" type="password" placeholder="Value" required autocomplete="off" /><button><${Icon} name="key" />Store</button>
    </form>
    <p class="small">Values are encrypted and are never shown again. Running agents get a new value before their next turn.</p>
  </div>`;
}

// As requests about a server name it; the settings say `transport`.
function typed({ transport, enabled, ...server }) {
  return { ...server, type: server.url ? (transport === "sse" ? "sse" : "http") : "stdio" };
}

// The server with its secrets encrypted: what is shown has none of them.
async function sealed(name) {
  const { agent_settings: own } = await get("/api/settings", { headers: { "X-Expose-Secrets": "encrypted" } });
  return own.mcp_config[name];
}

// The server's page, which comes back to the machine that Ostler runs on; from another one its address is pasted.
function Login({ login, onEnd }) {
  if (!/^https?:/.test(login?.url ?? "")) return null;
  return html`<p><a href=${login.url} target="_blank" rel="noopener noreferrer">Log in at the server</a></p>
    <form class="reason" onSubmit=${onEnd}><input name="ended" type="url" aria-label="Address of the last page" placeholder="If the last page does not open: its address" required autocomplete="off" /><button>Finish</button></form>`;
}

function Mcp() {
  const { value, error, again } = usePolled("/api/settings");
  const [problem, setProblem] = useState(null);
  const [found, setFound] = useState({});
  const [logins, setLogins] = useState({});
  const servers = Object.entries(value?.agent_settings?.mcp_config ?? {});
  const act = (call) => call.then(() => (setProblem(null), again()), setProblem);
  const say = (name, words) => setFound((known) => ({ ...known, [name]: words }));
  const tools = (answer) => `${answer.tools?.length ?? 0} tools: ${(answer.tools ?? []).join(", ")}`;
  async function test(name) {
    say(name, "testing…");
    try {
      const answer = await post("/api/mcp/test", { server: typed(await sealed(name)), name });
      say(name, answer.ok ? tools(answer) : `failed: ${answer.error}`);
    } catch (failure) {
      say(name, `failed: ${failure.message}`);
    }
  }
  // The person logs in at the server's own page; what comes of it is kept, encrypted, with the settings.
  async function login(name) {
    say(name, "logging in…");
    try {
      const begun = await post("/api/mcp/oauth/start", { server: typed(await sealed(name)), name });
      if (!begun.ok) return say(name, `failed: ${begun.error}`);
      const job = at`/api/mcp/oauth/status/${begun.job_id}`;
      let state = { ...begun, status: "pending" };
      while (state.status === "pending" || state.status === "authorizing") {
        if (state.authorization_url) setLogins((known) => ({ ...known, [name]: { job: begun.job_id, url: state.authorization_url } }));
        await later(LOGIN_MS);
        state = await get(job, { headers: { "X-Expose-Secrets": "encrypted" } });
      }
      if (state.status !== "succeeded") return say(name, `failed: ${state.error}`);
      await act(patch(at`/api/settings/mcp/${name}`, { auth: { strategy: "oauth2", state: state.oauth_state } }));
      say(name, `logged in. ${tools(state)}`);
    } catch (failure) {
      say(name, `failed: ${failure.message}`);
    } finally {
      setLogins((known) => ({ ...known, [name]: undefined }));
    }
    return undefined;
  }
  async function finish(event, name) {
    event.preventDefault();
    const { ended } = Object.fromEntries(new FormData(event.target));
    const answer = await post(at`/api/mcp/oauth/callback/${logins[name].job}`, { callback_url: ended.trim() }).catch((failure) => ({ error: failure.message }));
    if (!answer.ok) say(name, `not taken: ${answer.error}`);
  }
  function add(event) {
    event.preventDefault();
    const form = event.target;
    const { name, target } = Object.fromEntries(new FormData(form));
    const parts = target.trim().split(/\s+/);
    const server = /^https?:/.test(target) ? { transport: "http", url: target.trim() } : { command: parts[0], args: parts.slice(1) };
    act(post(at`/api/settings/mcp/${name.trim()}`, server).then(() => form.reset()));
  }
  return html`<div>
    <${Problem} error=${error ?? problem} />
    <table aria-label="MCP servers"><thead><tr><th>Name</th><th>What it runs</th><th><span class="hidden">Actions</span></th></tr></thead><tbody>
      ${servers.map(([name, server]) => html`<tr key=${name}><td>${name}</td><td class="mono">${server.url ?? [server.command, ...(server.args ?? [])].join(" ")}${found[name] && html`<div class="small" role="status">${found[name]}</div>`}<${Login} login=${logins[name]} onEnd=${(event) => finish(event, name)} /></td>
        <td class="buttons"><button onClick=${() => test(name)}>Test</button>
        ${server.url && html`<button onClick=${() => login(name)}>Log in</button>`}
        <button onClick=${() => act(patch(at`/api/settings/mcp/${name}`, { enabled: server.enabled === false }))}>${server.enabled === false ? "Enable" : "Disable"}</button>
        <${Sure} label="Remove" act=${() => act(remove(at`/api/settings/mcp/${name}`))} onProblem=${setProblem} /></td></tr>`)}
    </tbody></table>
    ${value && servers.length === 0 && html`<p class="small">None in the settings. Those of <code>ostler mcp</code> (mcp.json) are managed on the command line.</p>`}
    <form class="reason" onSubmit=${add}><input name="name" aria-label="Name" placeholder="Name" required /><input name="target" aria-label="URL or command" placeholder="https://… or npx -y package" required /><button><${Icon} name="plus" />Add</button></form>
  </div>`;
}

// -- settings, drawn from their schemas ------------------------------------------------------------------------------

const valueAt = (settings, key) => key.split(".").reduce((value, part) => value?.[part], settings);
const nested = (key, value) => key.split(".").reduceRight((inner, part) => ({ [part]: inner }), value);

function Schema({ path, part, kind }) {
  const schema = usePolled(path);
  const settings = usePolled("/api/settings");
  const [problem, setProblem] = useState(null);
  const [stored, setStored] = useState(null);
  const own = settings.value?.[part];
  if (!schema.value || !own) return html`<${Problem} error=${schema.error ?? settings.error} />`;
  async function change(field, value) {
    setStored(null);
    try {
      await patch("/api/settings", { [`${part}_diff`]: nested(field.key, value) });
      setProblem(null);
      setStored(field.label);
      settings.again();
    } catch (failure) {
      setProblem(failure);
    }
  }
  return html`<div>
    <${Problem} error=${problem} />
    ${stored && html`<p class="notice" role="status">Stored: ${stored}</p>`}
    ${schema.value.sections
      .filter((section) => !section.variant || !kind || section.variant === kind || section.fields.some((field) => field.variant === kind))
      .map((section) => html`<fieldset key=${section.key}><legend>${section.label}</legend>
        ${section.fields.filter((field) => SIMPLE.has(field.value_type) && (!kind || !field.variant || field.variant === kind)).map((field) => html`<${Field} key=${field.key} field=${field} value=${valueAt(own, field.key)} change=${(value) => change(field, value)} />`)}
      </fieldset>`)}
  </div>`;
}

function Settings() {
  const { value } = usePolled("/api/settings");
  return html`<div>
    <p class="small">For conversations that are started without settings of their own. Lists and objects are set with <code>ostler settings set</code>.</p>
    <h2>Agent</h2>
    ${value && html`<${Schema} path="/api/settings/agent-schema" part="agent_settings" kind=${value.agent_settings.agent_kind} />`}
    <h2>Conversation</h2>
    <${Schema} path="/api/settings/conversation-schema" part="conversation_settings" />
  </div>`;
}

const VIEWS = { status: Status, metrics: Metrics, secrets: Secrets, mcp: Mcp, profiles: Profiles, settings: Settings };

export function Server({ part }) {
  const View = VIEWS[part] ?? Status;
  return html`<section class="server">
    <h1>Server</h1>
    <nav class="tabs" aria-label="Parts of the server">${Object.entries(PARTS).map(([name, label]) => html`<a key=${name} href=${address(["server", name])} aria-current=${name === part ? "page" : undefined}>${label}</a>`)}</nav>
    <${View} key=${part} />
  </section>`;
}
