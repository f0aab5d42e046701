// What the views of the server share: asking again, problems, a second press, and fields that are drawn from a schema.

import { get } from "./api.js";
import { html, useEffect, useReducer, useState, whileSeen } from "./lib.js";

export function usePolled(path, wait = 0) {
  const [found, setFound] = useState({});
  const [turn, again] = useReducer((number) => number + 1, 0);
  useEffect(() => {
    let over = false;
    let asked = false;
    async function look() {
      if (asked) return; // a slow answer is not asked for twice
      asked = true;
      await get(path).then((value) => !over && setFound({ value }), (error) => !over && setFound((known) => ({ ...known, error })));
      asked = false;
    }
    look();
    const stop = wait ? whileSeen(look, wait) : () => {};
    return () => {
      over = true;
      stop();
    };
  }, [path, turn]);
  return { ...found, again };
}

export function Problem({ error }) {
  return error ? html`<p class="notice bad" role="alert">${error.message ?? error}</p>` : null;
}

export const SIMPLE = new Set(["string", "integer", "number", "boolean"]);

export function Field({ field, value, change }) {
  const label = html`<span>${field.label}</span>`;
  const names = { "aria-label": field.label, "aria-description": field.description || undefined };
  const about = field.description && html`<span class="small">${field.description}</span>`;
  if (field.value_type === "boolean")
    return html`<label class="field check"><input type="checkbox" ...${names} checked=${value === true} onChange=${(event) => change(event.target.checked)} /> ${label} ${about}</label>`;
  const choices = (field.choices ?? []).map((each) => (typeof each === "object" ? each : { value: each, label: each }));
  if (choices.length)
    return html`<label class="field">${label}<select ...${names} value=${value ?? ""} onChange=${(event) => change(event.target.value || null)}><option value="">–</option>${choices.map((each) => html`<option key=${each.value} value=${each.value}>${each.label}</option>`)}</select>${about}</label>`;
  const number = field.value_type === "integer" || field.value_type === "number";
  return html`<label class="field">${label}<input ...${names} type=${field.secret ? "password" : number ? "number" : "text"} step=${field.value_type === "number" ? "any" : undefined} value=${field.secret ? "" : (value ?? "")} placeholder=${field.secret && value ? "stored" : ""}
    onChange=${(event) => change(event.target.value === "" ? null : number ? Number(event.target.value) : event.target.value)} />${about}</label>`;
}
