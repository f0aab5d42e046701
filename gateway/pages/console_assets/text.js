// Text of agents as HTML: Markdown, code with colours, terminal output. DOMPurify decides what of it may stand on the page.

import { AnsiUp } from "./vendor/ansi_up.js";
import hljs from "./vendor/highlight.js";
import { marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";
import { html, useLayoutEffect, useRef } from "./lib.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "li", "ol", "p",
    "pre", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["class", "href", "title", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#)/i,
  RETURN_TRUSTED_TYPE: true,
}; // prettier-ignore

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
});

// Languages by their names and their other names; each is loaded when it is first met.
const LANGUAGES = {
  bash: "bash", sh: "bash", shell: "bash", console: "bash", css: "css", go: "go", javascript: "javascript", js: "javascript",
  mjs: "javascript", json: "json", python: "python", py: "python", rust: "rust", rs: "rust", typescript: "typescript",
  ts: "typescript", tsx: "typescript", xml: "xml", html: "xml", svg: "xml", yaml: "yaml", yml: "yaml",
}; // prettier-ignore
const loading = new Map();
const CODE_CHARS = 100_000; // beyond, colours take longer than they help

export function languageOf(path) {
  return LANGUAGES[path?.split(".").pop()?.toLowerCase()];
}

function load(name) {
  if (!loading.has(name))
    loading.set(
      name,
      import(`./vendor/highlight-${name}.js`).then((found) => hljs.registerLanguage(name, found.default)),
    );
  return loading.get(name);
}

marked.use({
  gfm: true,
  renderer: {
    // Raw HTML of an agent is text.
    html: ({ text }) => escape(text),
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    code: ({ text, lang }) => `<pre><code class="language-${escape((lang ?? "").split(/\s/)[0])}">${escape(text)}</code></pre>`,
  },
});

function escape(text) {
  return text.replace(/[&<>"']/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[sign]);
}

async function colour(element) {
  for (const code of element.querySelectorAll("code[class^='language-']")) {
    const name = LANGUAGES[code.className.replace("language-", "").toLowerCase()];
    if (name && code.textContent.length < CODE_CHARS) await paint(code, name);
  }
}

async function paint(code, name) {
  await load(name);
  const text = code.textContent;
  code.innerHTML = DOMPurify.sanitize(hljs.highlight(text, { language: name, ignoreIllegals: true }).value, ALLOWED);
}

const MARKDOWN_CHARS = 400_000;

export function Markdown({ text, streaming }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    if (text.length > MARKDOWN_CHARS) {
      place.current.textContent = text;
      return;
    }
    place.current.innerHTML = DOMPurify.sanitize(marked.parse(text), ALLOWED);
    if (!streaming) colour(place.current).catch(() => {}); // without colours it can be read, too
  }, [text, streaming]);
  return html`<div class="markdown" ref=${place}></div>`;
}

export function Code({ text, path }) {
  const place = useRef(null);
  const name = languageOf(path);
  useLayoutEffect(() => {
    place.current.textContent = text;
    if (name && text.length < CODE_CHARS) paint(place.current, name).catch(() => {});
  }, [text, name]);
  return html`<pre class="code"><code ref=${place}></code></pre>`;
}

// Output of a terminal, with its colours as classes.
export function Ansi({ text }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    const ansi = new AnsiUp();
    ansi.use_classes = true;
    place.current.innerHTML = DOMPurify.sanitize(ansi.ansi_to_html(text), ALLOWED);
  }, [text]);
  return html`<pre class="output" ref=${place}></pre>`;
}
