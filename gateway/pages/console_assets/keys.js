// The keys that do something, shown with `?`.

import { html, useEffect, useRef } from "./lib.js";

const KEYS = [
  ["/", "search"],
  ["j, k", "next, previous conversation"],
  ["Enter", "open it; in a message, send it"],
  ["Shift-Enter", "a new line in a message"],
  ["n", "new conversation"],
  ["Esc", "leave a field, close what stands beside, go back"],
  ["?", "this help"],
];

export function Keys() {
  const dialog = useRef(null);
  useEffect(() => {
    const press = (event) => {
      if (event.key !== "?" || event.target.closest?.("input, textarea, select")) return;
      if (!dialog.current.open) dialog.current.showModal();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  return html`<dialog ref=${dialog} aria-label="Keys">
    <h2>Keys</h2>
    <dl class="keys">${KEYS.map(([key, does]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${does}</dd></div>`)}</dl>
    <form method="dialog"><button>Close</button></form>
  </dialog>`;
}
