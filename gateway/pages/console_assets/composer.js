// Where a person writes to the agent: messages, attachments, commands of the agent, its model and mode; and the controls of the run.

import { at, post } from "./api.js";
import { html, Icon, useMemo, useRef, useState } from "./lib.js";

const IMAGE_BYTES = 5_000_000;
const TEXT_BYTES = 500_000;
const ENDED = new Set(["idle", "finished", "error", "stuck", "paused"]);

async function attached(file) {
  if (file.type.startsWith("image/")) {
    if (file.size > IMAGE_BYTES) throw new Error(`${file.name} has more than 5 MB.`);
    const url = await new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
      reader.readAsDataURL(file);
    });
    return { name: file.name, part: { type: "image", image_urls: [url] } };
  }
  if (file.size > TEXT_BYTES) throw new Error(`${file.name} has more than 500 KB. Put it into the workspace and name its path.`);
  return { name: file.name, part: { type: "text", text: `${file.name}:\n\n\`\`\`\n${await file.text()}\n\`\`\`` } };
}

function Choice({ id, label, value, options, act }) {
  const [sent, setSent] = useState(null);
  const [problem, setProblem] = useState(null);
  async function choose(event) {
    const wanted = event.target.value;
    setSent(wanted);
    setProblem(null);
    try {
      await act(wanted);
    } catch (error) {
      setProblem(error.message);
    }
    setSent(null);
  }
  // Shown is what the agent has, not what was asked of it.
  return html`<label class="choice"><span>${label}</span>
    <select value=${value} disabled=${sent !== null} onChange=${choose} aria-busy=${sent !== null}>
      ${options.map((each) => html`<option key=${each.value} value=${each.value} title=${each.description}>${each.name ?? each.value}</option>`)}
    </select>
    ${problem && html`<span class="problem" role="alert">${problem}</span>`}
  </label>`;
}

function Choices({ id, state, row }) {
  const choices = [];
  for (const option of state.config_options ?? []) {
    if (option.type !== "select") continue;
    const options = (option.options ?? []).flatMap((each) => each.options ?? [each]);
    choices.push({ label: option.name ?? option.id, value: option.currentValue, options, act: (value) => post(at`/api/conversations/${id}/set_acp_option`, { option_id: option.id, value }) });
  }
  const has = (category) => (state.config_options ?? []).some((option) => option.category === category || option.id === category);
  const modes = state.modes;
  if (modes?.availableModes?.length && !has("mode"))
    choices.push({
      label: "Mode", value: state.current_mode ?? modes.currentModeId,
      options: modes.availableModes.map((each) => ({ value: each.id, name: each.name, description: each.description })),
      act: (mode) => post(at`/api/conversations/${id}/switch_acp_mode`, { mode }),
    }); // prettier-ignore
  const models = state.agent_state?.acp_available_models;
  if (models?.length && !has("model") && state.agent_state.acp_supports_runtime_model_switch)
    choices.push({
      label: "Model", value: row?.model ?? state.agent_state.acp_current_model_id,
      options: models.map((each) => ({ value: each.model_id, name: each.name, description: each.description })),
      act: (model) => post(at`/api/conversations/${id}/switch_acp_model`, { model }),
    }); // prettier-ignore
  return choices.map((each) => html`<${Choice} key=${each.label} id=${id} ...${each} />`);
}

export function Composer({ id, log, row }) {
  const [text, setText] = useState(() => sessionStorage.getItem(`draft ${id}`) ?? "");
  const [files, setFiles] = useState([]);
  const [busy, setBusy] = useState(null);
  const [problem, setProblem] = useState(null);
  const box = useRef(null);
  const status = log.state.execution_status ?? row?.execution_status ?? "idle";
  const runs = !ENDED.has(status);
  const works = runs || log.turn !== null; // a pause lets the turn under way end
  const queue = [...log.queued.entries()];
  const commands = log.state.available_commands ?? [];
  const typed = /^\/(\S*)$/.exec(text)?.[1];
  const offered = useMemo(
    () => (typed === undefined ? [] : commands.filter((each) => each.name.toLowerCase().startsWith(typed.toLowerCase())).slice(0, 8)),
    [typed, commands],
  );

  function write(value) {
    setText(value);
    sessionStorage.setItem(`draft ${id}`, value);
  }
  async function act(name, call) {
    setBusy(name);
    setProblem(null);
    try {
      await call();
    } catch (error) {
      setProblem(error.message);
    }
    setBusy(null);
  }
  function send(event) {
    event?.preventDefault();
    if (busy || (!text.trim() && files.length === 0)) return;
    act("send", async () => {
      const content = [...(text.trim() ? [{ type: "text", text }] : []), ...files.map((each) => each.part)];
      try {
        await post(at`/api/conversations/${id}/events`, { role: "user", content, run: true });
      } catch (error) {
        if (error.status === 0)
          error.message = "The server did not answer. Look whether the message is above before you send it again.";
        throw error;
      }
      // Only now: a message that the server did not take stays here. What was added meanwhile stays, too.
      if (box.current?.value === text) write("");
      setFiles((known) => known.filter((each) => !files.includes(each)));
    });
  }
  async function attach(event) {
    const chosen = [...event.target.files];
    event.target.value = "";
    for (const file of chosen)
      await attached(file).then(
        (found) => setFiles((known) => [...known, found]),
        (error) => setProblem(error.message),
      );
  }
  function press(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
    if (event.key === "Tab" && offered.length && !event.shiftKey) {
      event.preventDefault();
      write(`/${offered[0].name} `);
    }
  }
  const control = (name, label, icon, path, enabled) => html`<button type="button" disabled=${!enabled || busy !== null} onClick=${() => act(name, () => post(path))}><${Icon} name=${icon} />${label}</button>`;
  return html`<form class="composer" onSubmit=${send}>
    ${queue.length > 0 && html`<ol class="queue" aria-label="Queued messages">${queue.map(([key, said]) => html`<li key=${key}>${said.slice(0, 200)}</li>`)}</ol>`}
    ${offered.length > 0 && html`<ul class="commands" aria-label="Commands of the agent">
      ${offered.map((each) => html`<li key=${each.name}><button type="button" onClick=${() => { write(`/${each.name} `); box.current.focus(); }}><strong>/${each.name}</strong> ${each.description}</button></li>`)}
    </ul>`}
    <textarea ref=${box} aria-label="Message" placeholder="Message (Enter sends, Shift-Enter begins a line)" rows="2" value=${text} onInput=${(event) => write(event.target.value)} onKeyDown=${press}></textarea>
    ${files.length > 0 && html`<ul class="files">${files.map((each, index) => html`<li key=${index}>${each.name} <button type="button" class="quiet" aria-label=${`Remove ${each.name}`} onClick=${() => setFiles(files.filter((other) => other !== each))}><${Icon} name="x" /></button></li>`)}</ul>`}
    ${problem && html`<p class="notice bad" role="alert">${problem}</p>`}
    <div class="buttons">
      <label class="button attach"><${Icon} name="paperclip" />Attach<input type="file" multiple class="hidden" onChange=${attach} /></label>
      <${Choices} id=${id} state=${log.state} row=${row} />
      <span class="space"></span>
      ${control("interrupt", "Interrupt", "square", at`/api/conversations/${id}/interrupt`, works)}
      ${control("pause", "Pause", "pause", at`/api/conversations/${id}/pause`, runs)}
      ${control("run", "Resume", "play", at`/api/conversations/${id}/run`, !runs)}
      <button class="primary" disabled=${busy !== null || (!text.trim() && files.length === 0)}><${Icon} name="send" />Send</button>
    </div>
  </form>`;
}
