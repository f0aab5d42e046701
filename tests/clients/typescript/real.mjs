// A conversation of some turns with an agent.
//
//   real.mjs PACKAGE URL WORKSPACE AGENT PROMPT...
//
// PACKAGE is the directory of @openhands/typescript-client, AGENT the agent's settings as JSON. Prints JSON: the answers, the
// status after each turn, and the kinds of what the socket told.

import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [packageDirectory, url, workingDir, agent, ...prompts] = process.argv.slice(2);
globalThis.require = createRequire(join(packageDirectory, 'package.json')); // for its sockets, as in script.mjs
const sdk = await import(pathToFileURL(join(packageDirectory, 'dist/index.js')));

const TURN_MS = 120000; // an agent's first turn starts and installs nothing, but takes seconds
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const told = [];
const workspace = new sdk.RemoteWorkspace({ host: url, workingDir });
const talk = new sdk.RemoteConversation({ kind: 'ACPAgent', ...JSON.parse(agent) }, workspace, { callback: (event) => told.push(event) });

async function settled() {
  const end = Date.now() + TURN_MS;
  while (Date.now() < end) {
    await pause(100);
    await talk.state.refresh();
    const status = await talk.state.getExecutionStatus();
    if (!['running', 'idle'].includes(status)) return status;
  }
  throw new Error('the turn does not end');
}

await talk.start();
await talk.startWebSocketClient();
const answers = [];
const statuses = [];
for (const prompt of prompts) {
  await talk.sendMessage(prompt);
  await talk.run();
  statuses.push(await settled());
  answers.push(await talk.getAgentFinalResponse());
}
await talk.stopWebSocketClient();
await talk.close();
console.log(JSON.stringify({ answers, statuses, kinds: [...new Set(told.map((event) => event.kind))].sort() }));
process.exit(0);
