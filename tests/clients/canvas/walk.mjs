// A person's walk through the web UI.
//
//   walk.mjs PACKAGES CHROMIUM URL DIRECTORY COMMAND
//
// PACKAGES holds node_modules, URL serves the UI, COMMAND is the JSON array that starts a scripted agent. Prints JSON: of
// each step what failed, which toasts were shown, which requests were refused. The same walk goes to the peer's server.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Stage } from './stage.mjs';

const [packages, executable, url, directory, commandText] = process.argv.slice(2);
const command = JSON.parse(commandText);
const stage = new Stage(url, join(directory, 'shots'));
const step = stage.step.bind(stage);
await stage.open(packages, executable);
const ONBOARDED = { 'openhands-onboarded': '1', 'openhands-telemetry-consent': 'denied' };

const api = (path, options = {}) => stage.page.evaluate(async ([where, what]) => {
  const answer = await fetch(where, { headers: { 'content-type': 'application/json' }, ...what });
  const text = await answer.text();
  try { return JSON.parse(text); } catch { return text; }
}, [path, options]);
const write = async (text) => {
  await stage.click('chat-input');
  await stage.page.keyboard.type(text);
};
const send = async (text) => {
  await write(text);
  await stage.click('submit-button');
};
const conversation = () => /conversations\/([0-9a-f-]{36})/.exec(stage.page.url())?.[1];
const settled = async (wanted = ['finished', 'idle', 'paused', 'error']) => {
  for (let tries = 0; tries < 300; tries += 1) {
    const info = await api(`/api/conversations/${conversation()}`);
    if (wanted.includes(info.execution_status)) return info.execution_status;
    await stage.page.waitForTimeout(100);
  }
  throw new Error('still running');
};

// ------------------------------------------------------------------ the first visit
await step('onboarding: backend', async () => {
  await stage.go('/');
  // With a server that answers, the UI goes on by itself.
  await stage.id('onboarding-agent-option-codex').or(stage.id('onboarding-backend-next')).first().waitFor();
  if (await stage.id('onboarding-backend-next').count()) await stage.click('onboarding-backend-next');
  await stage.id('onboarding-agent-option-codex').waitFor();
});
await step('onboarding: Codex', async () => {
  await stage.click('onboarding-agent-option-codex');
  await stage.click('onboarding-agent-next');
  await stage.id('onboarding-step-setup-acp-secrets').waitFor();
});
await step('onboarding: its key', async () => {
  const panel = stage.id('onboarding-step-setup-acp-secrets');
  const key = panel.getByTestId(/OPENAI_API_KEY/).or(panel.locator('input')).filter({ visible: true }).first();
  await key.fill('sk-onboarding-0123456789');
  await stage.page.getByTestId(/onboarding-acp-secrets-next|onboarding-secrets-next/).or(panel.getByRole('button', { name: /next|continue/i })).first().click();
  await stage.id('onboarding-step-say-hello').waitFor();
  return (await api('/api/settings')).agent_settings.acp_server;
});
await step('onboarding: end', async () => {
  await stage.click('onboarding-hello-close');
  await stage.id('home-chat-launcher').waitFor();
  return (await api('/api/settings/secrets')).secrets.map((one) => one.name);
});

// ------------------------------------------------------------------ a conversation
await stage.fresh(ONBOARDED);
await stage.go('/');
// The UI starts conversations by the active profile: from here on it is one of the scripted agent.
await step('a profile of the scripted agent', async () => {
  const profile = { agent_kind: 'acp', acp_server: 'custom', acp_command: command[0], acp_args: command.slice(1) };
  await api('/api/agent-profiles/walk', { method: 'POST', body: JSON.stringify(profile) });
  const { profiles } = await api('/api/agent-profiles');
  const { id } = profiles.find((one) => one.name === 'walk');
  return Object.keys(await api(`/api/agent-profiles/${id}/activate`, { method: 'POST', body: '{}' })).sort();
});
await step('home', async () => {
  await stage.go('/');
  await stage.id('home-chat-launcher').waitFor();
  await stage.page.waitForTimeout(1500);
});
await step('start from home', async () => {
  await send('!text hello from the browser');
  await stage.page.waitForURL(/conversations\/[0-9a-f-]{36}/);
  await stage.page.getByTestId('agent-message').getByText(/hello from the browser/).first().waitFor();
  return settled();
});
await step('a tool call', async () => {
  await send('!tool execute list-everything');
  await stage.says(/list-everything/, 'chat-interface');
  return settled();
});
await step('stop', async () => {
  await send('!slow 200 50');
  await stage.click('stop-button');
  return settled(['paused', 'idle', 'finished']);
});
await step('after the stop', async () => {
  await send('!text still here');
  await stage.page.getByTestId('agent-message').getByText(/still here/).first().waitFor();
  return settled();
});
await step('files', async () => {
  const info = await api(`/api/conversations/${conversation()}`);
  const work = info.workspace.working_dir;
  writeFileSync(join(work, 'shown.txt'), 'content of the shown file\n');
  await stage.click('right-panel-toggle');
  await stage.page.waitForTimeout(1000);
  const file = stage.page.getByTestId('files-tab').getByText('shown.txt').first();
  for (let tries = 0; tries < 10 && !await file.count(); tries += 1) {
    await stage.click('files-tab-refresh');
    await stage.page.waitForTimeout(1000);
  }
  await stage.page.getByTestId('files-tab').getByText('shown.txt').first().click();
  await stage.page.getByText('content of the shown file').first().waitFor();
});
await step('commits', async () => {
  await stage.click('conversation-tab-commits');
  await stage.page.waitForTimeout(1500);
});
await step('terminal, browser, usage', async () => {
  for (const tab of ['terminal', 'browser', 'usage']) {
    await stage.click(`conversation-tab-${tab}`);
    await stage.page.waitForTimeout(700);
  }
  await stage.id('usage-panel').waitFor();
});
await step('attach a file', async () => {
  const info = await api(`/api/conversations/${conversation()}`);
  const path = join(directory, 'attached.txt');
  writeFileSync(path, 'attached content\n');
  await stage.page.getByTestId('upload-image-input').first().setInputFiles(path);
  await stage.page.waitForTimeout(500);
  await send('!text got it');
  await stage.says(/got it/, 'chat-interface');
  await settled();
  const events = await api(`/api/conversations/${conversation()}/events/search?limit=10&sort_order=TIMESTAMP_DESC&kind=MessageEvent`);
  const text = JSON.stringify(events.items[0].llm_message.content);
  const found = /[^"\s']*attached[^"\s']*\.txt/.exec(text)?.[0];
  if (!found) throw new Error(`the message does not name the file: ${text}`);
  const place = found.startsWith('/') ? found : join(info.workspace.working_dir, found);
  return readFileSync(place, 'utf8');
});
await step('choose a model', async () => {
  await stage.click('chat-input-llm-model');
  const other = stage.page.getByText(/^large$/i).filter({ visible: true });
  await stage.page.waitForTimeout(500);
  // The peer's server offers models of a custom agent only sometimes.
  if (!await other.count()) return stage.page.keyboard.press('Escape');
  await other.first().click();
  await stage.page.getByTestId('chat-input-llm-model').getByText(/large/i).waitFor();
  const model = (await api(`/api/conversations/${conversation()}`)).current_model_id;
  if (model !== 'large') throw new Error(`the model is ${model}`);
  return null;
});
await step('ask by the way', async () => {
  const before = await api(`/api/conversations/${conversation()}/events/count?kind=MessageEvent`);
  await send('/btw what is this?');
  await stage.page.getByTestId('btw-messages').getByText(/what is this/).first().waitFor();
  await stage.id('btw-spinner').waitFor({ state: 'hidden' }).catch(() => {});
  await stage.page.waitForTimeout(1000);
  return (await api(`/api/conversations/${conversation()}/events/count?kind=MessageEvent`)) - before;
});
await step('goal', async () => {
  await send('/goal !text reach it');
  await stage.page.waitForTimeout(2500);
  const status = stage.id('goal-stop');
  if (await status.count()) await status.click().catch(() => {});
  return settled(['finished', 'idle', 'paused', 'error']);
});
await step('compact the context', async () => {
  await stage.page.getByText('Compact context').filter({ visible: true }).first().click();
  await stage.page.waitForTimeout(1500);
});
await step('branch from here', async () => {
  const first = conversation();
  const label = /branch from here/i;
  const button = stage.page.getByRole('button', { name: label }).or(stage.page.getByLabel(label)).or(stage.page.getByTitle(label));
  const message = stage.page.getByTestId('agent-message').filter({ visible: true }).first();
  await message.scrollIntoViewIfNeeded();
  await message.hover();
  // The button is drawn only while the pointer is over its message.
  await button.first().evaluate((one) => one.click());
  await stage.page.waitForURL((where) => /conversations\/[0-9a-f-]{36}/.test(where.href) && !where.href.includes(first));
  await stage.says(/hello from the browser/, 'chat-interface');
  return settled();
});
await step('reload', async () => {
  await stage.page.reload();
  await stage.says(/hello from the browser/, 'chat-interface');
});
const menu = async (entry) => {
  const card = stage.page.getByTestId('conversation-card').first();
  await card.hover();
  await card.getByTestId('ellipsis-button').first().click({ force: true });
  await stage.page.getByText(entry).filter({ visible: true }).first().click();
};
await step('rename', async () => {
  await stage.page.getByTestId('conversation-name-title').dblclick();
  await stage.id('conversation-name-input').fill('Renamed here');
  await stage.page.keyboard.press('Enter');
  await stage.page.waitForTimeout(700);
  return (await api(`/api/conversations/${conversation()}`)).title;
});
await step('download', async () => {
  const saved = stage.page.waitForEvent('download').catch(() => null);
  await menu(/download/i);
  const path = join(directory, 'downloaded.zip');
  const file = await saved;
  if (file === null) throw new Error('nothing was downloaded');
  await file.saveAs(path);
  return readFileSync(path).subarray(0, 2).toString();
});
await step('delete', async () => {
  const gone = conversation();
  await menu(/^delete/i);
  await stage.page.getByTestId('confirmation-modal').or(stage.page.getByRole('dialog')).getByRole('button', { name: /delete|confirm/i }).first().click();
  await stage.page.waitForTimeout(1000);
  return (await api(`/api/conversations/${gone}`)).detail !== undefined;
});
await step('a second conversation', async () => {
  await stage.go('/');
  await send('!text the second one');
  await stage.page.waitForURL(/conversations\/[0-9a-f-]{36}/);
  await stage.says(/the second one/, 'chat-interface');
  return settled();
});

// ------------------------------------------------------------------ settings
for (const page of ['llm', 'condenser', 'agent-context', 'agents', 'agent', 'app', 'verification', 'secrets']) {
  await step(`settings: ${page}`, async () => {
    await stage.go(`/settings/${page}`);
    await stage.page.waitForTimeout(2500);
    if (await stage.page.getByText('404 Not Found').count()) throw new Error('no such page');
    return (await stage.page.getByTestId('sdk-schema-unavailable').count()) === 0;
  });
}
await step('settings: add a secret', async () => {
  await stage.go('/settings/secrets');
  await stage.page.getByRole('button', { name: /add/i }).first().click();
  await stage.page.getByTestId('name-input').fill('WALK_TOKEN');
  await stage.page.getByTestId('value-input').fill('walk-value');
  await stage.page.getByTestId('submit-button').or(stage.page.getByRole('button', { name: /add secret|save/i })).last().click();
  await stage.page.getByTestId('secret-item').getByText('WALK_TOKEN').waitFor();
  return (await api('/api/settings/secrets')).secrets.some((one) => one.name === 'WALK_TOKEN');
});
for (const page of ['mcp', 'skills', 'plugins', 'automations']) {
  await step(`page: ${page}`, async () => {
    await stage.go(`/${page}`);
    await stage.page.waitForTimeout(2500);
    if (await stage.page.getByText('404 Not Found').count()) throw new Error('no such page');
  });
}
await stage.browser.close();
console.log(JSON.stringify({ steps: stage.steps }, null, 1));
