// Says outside of the page that a person is asked: a notification for each new permission request, if that is allowed.

import { html, Icon, useState } from "./lib.js";
import { address } from "./router.js";
import { rows } from "./rows.js";

const shown = new Map(); // request id -> its notification
let known = null; // the requests at the last look; null before the first

export function watchRequests() {
  return rows.follow(() => {
    if (!rows.ready) return;
    const waiting = new Map();
    for (const row of rows.value.values()) if (row.waits) waiting.set(row.waits.request_id, row);
    for (const [id, row] of waiting) if (known && !known.has(id)) tell(id, row);
    // Answered, here or elsewhere.
    for (const [id, notification] of shown) {
      if (waiting.has(id)) continue;
      notification.close();
      shown.delete(id);
    }
    known = new Set(waiting.keys());
  });
}

function tell(id, row) {
  if (!("Notification" in window) || Notification.permission !== "granted" || !document.hidden) return;
  const notification = new Notification(row.title || row.agent, { body: `Permission: ${row.waits.title}`, tag: id });
  notification.onclick = () => {
    window.focus();
    location.hash = address(["c", row.id]);
    notification.close();
  };
  shown.set(id, notification);
}

// Browsers ask a person only after a press.
export function Notify() {
  const [state, setState] = useState("Notification" in window ? Notification.permission : "denied");
  if (state !== "default") return null;
  return html`<button class="quiet" onClick=${() => Notification.requestPermission().then(setState)}><${Icon} name="bell" />Notify me</button>`;
}
