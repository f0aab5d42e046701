// What a person does on every page: write, send, wait for the end of a turn; and questions to the server behind it.

import { createInterface } from 'node:readline';
import { Stage } from './stage.mjs';

const SETTLED = ['finished', 'idle', 'paused', 'error'];

export class Walker {
  constructor(url, directory, shots, command) {
    this.stage = new Stage(url, shots);
    this.directory = directory;
    this.command = command;
    this.step = this.stage.step.bind(this.stage);
    for (const name of ['api', 'write', 'send', 'conversation', 'settled', 'ask', 'start', 'useAgent', 'answer']) this[name] = this[name].bind(this);
  }

  // A request of the page, past the UI: JSON, or the text of what is none.
  api(path, options = {}) {
    return this.stage.page.evaluate(async ([where, what]) => {
      const answer = await fetch(where, { headers: { 'content-type': 'application/json' }, ...what });
      const text = await answer.text();
      try { return JSON.parse(text); } catch { return text; }
    }, [path, options]);
  }

  async write(text) {
    await this.stage.click('chat-input');
    await this.stage.page.keyboard.type(text);
  }

  async send(text) {
    await this.write(text);
    await this.stage.click('submit-button');
  }

  // The id in the address.
  conversation() {
    return /conversations\/([0-9a-f-]{36})/.exec(this.stage.page.url())?.[1];
  }

  async start(text) {
    await this.send(text);
    await this.stage.page.waitForURL(/conversations\/[0-9a-f-]{36}/);
  }

  // What agents said that has this text; the peer tells an agent more than the person wrote, and the scripted one echoes it.
  answer(text) {
    return this.stage.page.getByTestId('agent-message').filter({ hasText: text, visible: true });
  }

  async settled(wanted = SETTLED) {
    for (let tries = 0; tries < 300; tries += 1) {
      const info = await this.api(`/api/conversations/${this.conversation()}`);
      if (wanted.includes(info.execution_status)) return info.execution_status;
      await this.stage.page.waitForTimeout(100);
    }
    throw new Error('still running');
  }

  // From here on conversations are started with the scripted agent, as one of this name.
  async useAgent(name, server, ...modes) {
    const [program, ...rest] = this.command;
    const profile = { agent_kind: 'acp', acp_server: server, acp_command: program, acp_args: [...rest, ...modes.flatMap((one) => ['--mode', one])] };
    await this.api(`/api/agent-profiles/${name}`, { method: 'POST', body: JSON.stringify(profile) });
    const { profiles } = await this.api('/api/agent-profiles');
    const { id } = profiles.find((one) => one.name === name);
    return Object.keys(await this.api(`/api/agent-profiles/${id}/activate`, { method: 'POST', body: '{}' })).sort();
  }

  // Something that only who runs the walk can do (`walk.py`): a line there, a line back.
  ask(what) {
    this.answers ??= createInterface({ input: process.stdin })[Symbol.asyncIterator]();
    console.log(JSON.stringify({ ask: what }));
    return this.answers.next();
  }
}
