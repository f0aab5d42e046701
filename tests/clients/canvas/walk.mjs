// A person's walk through the web UI.
//
//   walk.mjs PACKAGES CHROMIUM URL DIRECTORY COMMAND PART...
//
// PACKAGES holds node_modules, URL serves the UI, COMMAND is the JSON array that starts a scripted agent, each PART is one
// of those below. Prints JSON: of each step what failed, which toasts were shown, which requests were refused. The same
// walk goes to the peer's server.

import { join } from 'node:path';
import { confirmations } from './confirmations.mjs';
import { conversationPage } from './conversation.mjs';
import { builtInAgent, firstVisit, scriptedProfile } from './first_visit.mjs';
import { mcpDialog } from './mcp_dialog.mjs';
import { modelChip } from './model_chip.mjs';
import { realAgent } from './real_agent.mjs';
import { restart } from './restart.mjs';
import { settingsPages } from './settings.mjs';
import { Walker } from './walker.mjs';
import { workspace } from './workspace.mjs';

const PARTS = {
  'first visit': firstVisit,
  'scripted profile': scriptedProfile,
  conversation: conversationPage,
  'model chip': modelChip,
  workspace,
  settings: settingsPages,
  mcp: mcpDialog,
  confirmations,
  restart,
  'built-in agent': builtInAgent,
  'real agent': realAgent,
};
const NEW = ['first visit', 'built-in agent'];
const ONBOARDED = { 'openhands-onboarded': '1', 'openhands-telemetry-consent': 'denied' };

const [packages, executable, url, directory, command, ...parts] = process.argv.slice(2);
const walker = new Walker(url, directory, join(directory, 'shots'), JSON.parse(command));
await walker.stage.open(packages, executable);
for (const part of parts) {
  await walker.stage.fresh(NEW.includes(part) ? {} : ONBOARDED);
  await PARTS[part](walker);
}
await walker.stage.browser.close();
console.log(JSON.stringify({ steps: walker.stage.steps }));
process.exit(0);
