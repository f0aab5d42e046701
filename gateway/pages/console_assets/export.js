// What an export for people has. Pure: no page, no network.

import { diffs, empty, pictures, take, texts, turnWords } from "./items.js";

// A block of text with more ticks around it than it has itself.
function block(text, language = "") {
  const ticks = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([found]) => found.length + 1)));
  return [`${ticks}${language}`, text, ticks, ""];
}

const shown = (urls) => urls.flatMap((url) => [`![Picture](${url})`, ""]);
const marked = (text, sign) => text.split("\n").map((line) => sign + line);

function changed({ path, before, after }) {
  return block([path, ...(before ? marked(before, "-") : []), ...marked(after, "+")].join("\n"), "diff");
}

const PARTS = {
  // One that has a thought alone is left out.
  message: (item) => !item.text && !item.images?.length ? [] : [`## ${item.role === "user" ? "You" : "Agent"}`, "", ...(item.text ? [item.text, ""] : []), ...shown(item.images ?? [])],
  notice: (item) => [...marked(item.text, "> "), ""],
  error: (item) => [`**Error (${item.code})**: ${item.text}`, ""],
  turn: (item) => [`*${turnWords(item)}*`, ""],
  call(item) {
    const output = texts(item).join("\n");
    return [`- **${item.title}** (${item.status})`, "", ...diffs(item).flatMap(changed), ...(output ? block(output) : []), ...shown(pictures(item))];
  },
};

// Events of the server as Markdown.
export function markdown(events, title) {
  const log = empty();
  events.forEach((found, seq) => take(log, { type: "durable", seq, event: found }));
  return [`# ${title}`, "", ...log.items.flatMap((item) => PARTS[item.kind]?.(item) ?? [])].join("\n");
}
