// What changed in a file, line by line.

import Diff from "./vendor/diff.js";
import { html, useMemo } from "./lib.js";

const CONTEXT = 3;
const LINES = 2000; // of one file that are drawn
const CHARS = 1_000_000; // beyond, comparing would hold up the page

export function changed(before, after) {
  if (before.length + after.length > CHARS) return null;
  const { hunks } = Diff.structuredPatch("", "", before, after, "", "", { context: CONTEXT, timeout: 500 }) ?? { hunks: null };
  return hunks;
}

export function Difference({ path, before, after }) {
  const hunks = useMemo(() => changed(before ?? "", after ?? ""), [before, after]);
  if (hunks === null) return html`<p class="small">${path}: too large to compare here. Download the file to see it.</p>`;
  const lines = hunks.flatMap((hunk) => [`@@ line ${hunk.newStart} @@`, ...hunk.lines]);
  const counts = { "+": 0, "-": 0 };
  for (const line of lines) if (line[0] in counts) counts[line[0]] += 1;
  return html`<figure class="difference">
    <figcaption><span class="mono">${path}</span> <span class="added">+${counts["+"]}</span> <span class="removed">−${counts["-"]}</span></figcaption>
    <pre>${lines.slice(0, LINES).map(
      (line, index) =>
        html`<span key=${index} class=${{ "+": "line added", "-": "line removed", "@": "line place" }[line[0]] ?? "line"}>${line}${"\n"}</span>`,
    )}</pre>
    ${lines.length > LINES && html`<p class="small">${lines.length - LINES} more lines are not shown.</p>`}
  </figure>`;
}
