// An ACP client of the TypeScript SDK that does the steps it is given; tests/interop/editors/clients.py says which.
//
//   drive.mjs SDK JSON
//
// SDK is the directory of @agentclientprotocol/sdk.

import { spawn } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Readable, Writable } from 'node:stream';
import { pathToFileURL } from 'node:url';

const [sdk, json] = process.argv.slice(2);
const { client, methods, ndJsonStream, PROTOCOL_VERSION } = await import(pathToFileURL(join(sdk, 'dist/v1/stable/acp.js')));
const given = JSON.parse(json);

const tell = (event, fields) => process.stdout.write(`${JSON.stringify({ event, ...fields })}\n`);
const words = {};
const word = (name) => words[name].promise;
for (const name of ['answer', 'end']) words[name] = Promise.withResolvers();
createInterface({ input: process.stdin }).on('line', (line) => words[line.trim()].resolve());

let running = {};
let said = '';
let reached = () => {};

const app = client({ name: 'ostler-tests' })
  .onNotification(methods.client.session.update, ({ params }) => {
    const { update } = params;
    tell('update', { session: params.sessionId, update });
    if (update.sessionUpdate === 'agent_message_chunk') said += update.content?.text ?? '';
    if (running.cancel_at && said.includes(running.cancel_at)) reached();
  })
  .onRequest(methods.client.session.requestPermission, async ({ params, requestId, signal }) => {
    tell('permission', { id: requestId, params });
    const ended = new Promise((resolve) => signal.addEventListener('abort', () => resolve('ended')));
    if (running.answer === 'word' && (await Promise.race([ended, word('answer')])) === 'ended') {
      tell('cancel_request', { id: requestId });
      return { outcome: { outcome: 'cancelled' } };
    }
    const kind = running.answer === 'reject' ? 'reject_once' : 'allow_once';
    return { outcome: { outcome: 'selected', optionId: params.options.find((option) => option.kind === kind).optionId } };
  })
  .onRequest(methods.client.fs.readTextFile, async ({ params }) => ({ content: await readFile(params.path, 'utf8') }))
  .onRequest(methods.client.fs.writeTextFile, async ({ params }) => {
    await writeFile(params.path, params.content);
    return {};
  });

let sessionId;
const { cwd } = given;
const steps = {
  initialize: (agent) =>
    agent.request(methods.agent.initialize, {
      protocolVersion: PROTOCOL_VERSION,
      clientCapabilities: { fs: { readTextFile: true, writeTextFile: true } },
      clientInfo: { name: 'ostler-tests', version: '1' },
    }),
  async new(agent) {
    const answer = await agent.request(methods.agent.session.new, { cwd, mcpServers: [] });
    ({ sessionId } = answer);
    return answer;
  },
  load(agent, { session }) {
    sessionId = session;
    return agent.request(methods.agent.session.load, { sessionId, cwd, mcpServers: [] });
  },
  list: (agent) => agent.request(methods.agent.session.list, { cwd }),
  mode: (agent, { mode }) => agent.request(methods.agent.session.setMode, { sessionId, modeId: mode }),
  async prompt(agent, { text, cancel_at: cancelAt }) {
    said = '';
    const cancels = new Promise((resolve) => (reached = resolve));
    const turn = agent.request(methods.agent.session.prompt, { sessionId, prompt: [{ type: 'text', text }] });
    if (cancelAt) {
      await Promise.race([turn, cancels]);
      await agent.notify(methods.agent.session.cancel, { sessionId });
    }
    return turn;
  },
  async watch() {
    await word('end');
    return {};
  },
};

const [program, ...rest] = given.command;
const agentProcess = spawn(program, rest, { cwd, env: { ...process.env, ...given.env }, stdio: ['pipe', 'pipe', 'inherit'] });
const exited = new Promise((resolve) => agentProcess.on('exit', (code) => resolve(code)));
const stream = ndJsonStream(Writable.toWeb(agentProcess.stdin), Readable.toWeb(agentProcess.stdout));
await app.connectWith(stream, async (agent) => {
  for (const [step, each] of [{ do: 'initialize' }, ...given.steps].entries()) {
    running = each;
    try {
      tell('answer', { step, do: each.do, result: await steps[each.do](agent, each) });
    } catch (error) {
      tell('answer', { step, do: each.do, error: { code: error.code, message: error.message, data: error.data } });
    }
  }
});
agentProcess.stdin.end();
tell('end', { status: await exited });
process.exit(0);
