// The frame of the page: signing in, navigation, the state of the connection, and the view that the address names.

import { get, session } from "./api.js";
import { Guard, html, Icon, render, Store, useEffect, useState, useStore } from "./lib.js";
import { Keys } from "./keys.js";
import { Notify, watchRequests } from "./notify.js";
import { Overview } from "./overview.js";
import { address, route } from "./router.js";
import { connection, follow, rows } from "./rows.js";

const signedIn = new Store(null);

// Views that are loaded when they are first shown.
const LATER = {
  c: () => import("./conversation.js").then((found) => found.Conversation),
  server: () => import("./server.js").then((found) => found.Server),
  new: () => import("./start.js").then((found) => found.Start),
};

// A conversation that the address names: all its modules are asked for at once, not each when another has come.
const CONVERSATION = [
  "conversation", "composer", "difference", "export", "items", "live", "log", "panes", "text", "vendor/ansi_up", "vendor/diff",
  "vendor/highlight", "vendor/ios-gesture", "vendor/lazy-measurements", "vendor/marked", "vendor/purify",
  "vendor/scroll-classifier", "vendor/utils", "vendor/virtual",
]; // prettier-ignore
function Later({ name, ...given }) {
  const [View, setView] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    setView(null);
    LATER[name]().then((found) => setView(() => found), setError);
  }, [name]);
  if (error) return html`<p class="notice bad" role="alert">This view could not be loaded. Reload the page.</p>`;
  return View ? html`<${View} ...${given} />` : html`<p class="notice" aria-busy="true">Loading…</p>`;
}

function View() {
  const { parts, query } = useStore(route);
  const [name] = parts;
  if (name === "c" && parts[1]) return html`<${Later} name="c" key=${parts[1]} id=${parts[1]} query=${query} />`;
  if (name === "server") return html`<${Later} name="server" part=${parts[1] ?? "status"} query=${query} />`;
  if (name === "new") return html`<${Later} name="new" query=${query} />`;
  return html`<${Overview} query=${query} />`;
}

const WORDS = {
  connecting: "Connecting…",
  open: "Connected",
  lost: "Connection lost. Trying again…",
  refused: "Not signed in",
};

function Connection() {
  const state = useStore(connection);
  return html`<span role="status" aria-label="Connection" class=${`connection ${state}`}>${WORDS[state]}</span>`;
}

function Top() {
  const { parts } = useStore(route);
  const found = useStore(rows);
  const waiting = [...found.values()].filter((row) => row.waits).length;
  useEffect(() => {
    document.title = waiting ? `(${waiting}) Ostler` : "Ostler";
  }, [waiting]);
  const here = (name) => ((parts[0] ?? "") === name ? "page" : undefined);
  return html`<header class="top">
    <a class="brand" href=${address([])}>Ostler</a>
    <nav aria-label="Views">
      <a href=${address([])} aria-current=${here("")}>Conversations${waiting > 0 && html` <span class="badge">${waiting}</span>`}</a>
      <a href=${address(["server"])} aria-current=${here("server")}>Server</a>
    </nav>
    <${Connection} />
    <${Notify} />
    <a class="button primary" href=${address(["new"])}><${Icon} name="plus" />New conversation</a>
  </header>`;
}

function SignIn() {
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  async function submit(event) {
    event.preventDefault();
    const key = new FormData(event.target).get("key").trim();
    if (!key) return;
    setBusy(true);
    session.key = key;
    try {
      await get("/api/status");
      begin();
    } catch (error) {
      session.key = null;
      setProblem(error.status === 401 ? "The server does not know this key." : error.message);
    }
    setBusy(false);
  }
  return html`<main class="sign-in">
    <form onSubmit=${submit}>
      <h1>Sign in</h1>
      <p>This server wants a session key. <code>ostler serve</code> printed it, or its operator has it. It stays in this tab.</p>
      <label>Session key <input name="key" type="password" autocomplete="off" required autofocus /></label>
      ${problem && html`<p class="notice bad" role="alert">${problem}</p>`}
      <button class="primary" disabled=${busy}>Sign in</button>
    </form>
  </main>`;
}

function App() {
  const known = useStore(signedIn);
  if (known === null) return html`<header class="top"><span class="brand">Ostler</span></header><main aria-busy="true"></main>`;
  if (!known) return html`<${SignIn} />`;
  return html`<${Top} /><main id="main"><${Guard} what="This view"><${View} /></${Guard}></main><${Keys} />`;
}

watchRequests();

function begin() {
  signedIn.set(true);
  follow(() => {
    session.key = null;
    signedIn.set(false);
  });
}

async function start() {
  render(html`<${App} />`, document.getElementById("app"));
  try {
    // Without a key this is refused where one is wanted, and nowhere else.
    await get("/api/conversations/count");
    begin();
  } catch (error) {
    if (error.status === 401) {
      session.key = null;
      signedIn.set(false);
    } else {
      begin(); // the socket connects again, and says so meanwhile
    }
  }
}

document.getElementById("app").replaceChildren();
start();
if (route.value.parts[0] === "c")
  for (const name of CONVERSATION)
    document.head.append(Object.assign(document.createElement("link"), { rel: "modulepreload", href: `/console/${name}.js` }));
