// Agent and LLM profiles: made, changed, activated, deleted.

import { at, get, post, remove } from "./api.js";
import { Field, Problem, SIMPLE, usePolled } from "./forms.js";
import { html, Icon, Sure, useEffect, useRef, useState } from "./lib.js";

const SEALED = { headers: { "X-Expose-Secrets": "encrypted" } };
// Of an agent profile, as its description calls the shape of each kind.
const SHAPES = { acp: "AgentProfile", openhands: "OpenHandsAgentProfile" };
const OF_THE_SERVER = new Set(["name", "id", "revision", "schema_version"]);

const labelOf = (key) => key.replace(/^acp_/, "").replace(/_ref$/, "").replaceAll("_", " ").replace(/^llm/, "LLM").replace(/^./, (first) => first.toUpperCase());

// The fields of a JSON schema that have one simple type, or null.
function fieldsOf(schema, choices) {
  const fields = Object.entries(schema.properties).map(([key, given]) => {
    const one = given.anyOf?.find((each) => each.type !== "null") ?? given;
    return { key, label: labelOf(key), value_type: "const" in one ? null : one.type, choices: choices[key] ?? one.enum, description: given.description };
  });
  return fields.filter((field) => SIMPLE.has(field.value_type) && !OF_THE_SERVER.has(field.key));
}

// What is not drawn here is stored again as it was.
function Editor({ name, draft, fields, save, onEnd }) {
  const [value, setValue] = useState(draft);
  const [problem, setProblem] = useState(null);
  const form = useRef(null);
  useEffect(() => form.current.querySelector("input, select").focus(), []);
  function change(key, given) {
    const { [key]: before, ...rest } = value;
    setValue(given === null ? rest : { ...rest, [key]: given });
  }
  async function submit(event) {
    event.preventDefault();
    try {
      await save(name ?? new FormData(event.target).get("name").trim(), value);
      onEnd();
    } catch (failure) {
      setProblem(failure);
    }
  }
  const draw = (field) => html`<${Field} key=${field.key} field=${field} value=${value[field.key]} change=${(given) => change(field.key, given)} />`;
  const minor = fields.filter((field) => field.prominence === "minor");
  return html`<form ref=${form} aria-label=${name ? `Profile ${name}` : "New profile"} onSubmit=${submit}><fieldset><legend>${name ?? "New profile"}</legend>
    ${!name && html`<label class="field"><span>Name</span><input name="name" pattern="[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}" required autocomplete="off" /></label>`}
    ${fields.filter((field) => field.prominence !== "minor").map(draw)}
    ${minor.length > 0 && html`<details><summary>More</summary>${minor.map(draw)}</details>`}
    <${Problem} error=${problem} />
    <p class="buttons"><button class="primary">Save</button><button type="button" onClick=${onEnd}>Cancel</button></p>
  </fieldset></form>`;
}

function Table({ label, rows, active, onEdit, onActivate, onDelete, onProblem }) {
  return html`<table aria-label=${label}><tbody>${rows.map((each) => html`<tr key=${each.name}><td>${each.name}${active(each) && html` <span class="tag">active</span>`}</td><td>${each.model ?? each.agent_kind}</td>
    <td class="buttons"><button onClick=${() => onEdit(each.name)}>Edit</button><button disabled=${active(each)} onClick=${() => onActivate(each)}>Activate</button><${Sure} label="Delete" act=${() => onDelete(each)} onProblem=${onProblem} /></td></tr>`)}</tbody></table>`;
}

export function Profiles() {
  const agents = usePolled("/api/agent-profiles");
  const models = usePolled("/api/profiles");
  const [problem, setProblem] = useState(null);
  const [editor, setEditor] = useState(null);
  const act = (call, again) => call.then(() => (setProblem(null), again?.()), setProblem);
  async function editAgent(name, kind) {
    const [description, found] = await Promise.all([get("/openapi.json"), name && get(at`/api/agent-profiles/${name}`)]);
    const draft = found?.profile ?? { agent_kind: kind };
    const choices = { llm_profile_ref: (models.value?.profiles ?? []).map((each) => each.name) };
    const save = (as, profile) => post(at`/api/agent-profiles/${as}`, profile).then(agents.again);
    setEditor({ of: "agent", name, draft, save, fields: fieldsOf(description.components.schemas[SHAPES[draft.agent_kind]], choices) });
  }
  async function editModel(name) {
    const [schema, found] = await Promise.all([get("/api/settings/agent-schema"), name && get(at`/api/profiles/${name}`, SEALED)]);
    const { fields } = schema.sections.find((section) => section.key === "llm");
    const own = fields.map((field) => ({ ...field, key: field.key.replace("llm.", "") })).filter((field) => SIMPLE.has(field.value_type));
    const save = (as, llm) => post(at`/api/profiles/${as}`, { llm }).then(models.again);
    setEditor({ of: "model", name, draft: found?.config ?? {}, save, fields: own });
  }
  const shown = (of) => editor?.of === of && html`<${Editor} key=${editor.name} ...${editor} onEnd=${() => setEditor(null)} />`;
  return html`<div>
    <${Problem} error=${problem ?? agents.error ?? models.error} />
    <h2>Agent profiles</h2>
    <${Table} label="Agent profiles" rows=${agents.value?.profiles ?? []} active=${(each) => each.id === agents.value.active_agent_profile_id} onProblem=${setProblem} onEdit=${(name) => act(editAgent(name))}
      onActivate=${(each) => act(post(at`/api/agent-profiles/${each.id}/activate`), agents.again)} onDelete=${(each) => act(remove(at`/api/agent-profiles/${each.name}`), agents.again)} />
    <p class="buttons"><button onClick=${() => act(editAgent(null, "acp"))}><${Icon} name="plus" />New agent profile</button><button onClick=${() => act(editAgent(null, "openhands"))}><${Icon} name="plus" />New profile of the built-in agent</button></p>
    ${shown("agent")}
    <h2>LLM profiles</h2>
    <${Table} label="LLM profiles" rows=${models.value?.profiles ?? []} active=${(each) => each.name === models.value.active_profile} onProblem=${setProblem} onEdit=${(name) => act(editModel(name))}
      onActivate=${(each) => act(post(at`/api/profiles/${each.name}/activate`), models.again)} onDelete=${(each) => act(remove(at`/api/profiles/${each.name}`), models.again)} />
    ${models.value?.profiles.length === 0 && html`<p class="small">No LLM profiles. The built-in agent uses them.</p>`}
    <p class="buttons"><button onClick=${() => act(editModel(null))}><${Icon} name="plus" />New LLM profile</button></p>
    ${shown("model")}
  </div>`;
}
