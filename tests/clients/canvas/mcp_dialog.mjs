// MCP servers in their dialog: tried, added, switched off and on, edited, taken away.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

// Speaks just enough of MCP to offer two tools.
const SERVER = `
const lines = require('node:readline').createInterface({ input: process.stdin });
const tools = ['hello', 'goodbye'].map((name) => ({ name, description: name, inputSchema: { type: 'object', properties: {} } }));
lines.on('line', (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    initialize: { protocolVersion: params?.protocolVersion ?? '2025-06-18', capabilities: { tools: {} }, serverInfo: { name: 'hello', version: '1' } },
    'tools/list': { tools },
  };
  const answer = results[method] ? { result: results[method] } : { error: { code: -32601, message: 'no such method' } };
  process.stdout.write(JSON.stringify({ jsonrpc: '2.0', id, ...answer }) + '\\n');
});`;

export async function mcpDialog({ stage, step, api, directory }) {
  const program = join(directory, 'hello-mcp.cjs');
  writeFileSync(program, SERVER);
  const known = async () => {
    const { mcp_config: config } = (await api('/api/settings')).agent_settings;
    return Object.entries(config?.mcpServers ?? config ?? {}).map(([name, one]) => ({ name, args: one.args?.length, enabled: one.enabled ?? true }));
  };
  const item = (name) => stage.page.getByTestId('mcp-server-item').filter({ hasText: name });
  const fill = async (name, command, args) => {
    await stage.id('name-input').fill(name);
    await stage.id('command-input').fill(command);
    await stage.id('args-input').fill(args.join('\n'));
  };
  const tried = async () => {
    // The message of the try before stays until the answer is here.
    const answer = stage.page.waitForResponse((one) => one.url().includes('/api/mcp/test'));
    await stage.click('mcp-test-connection');
    await answer;
    await stage.quiet();
    const message = stage.id('mcp-test-message');
    await message.waitFor();
    return (await message.getAttribute('class')).includes('green');
  };

  await step('MCP: the dialog', async () => {
    await stage.go('/mcp');
    await stage.click('mcp-add-custom-server');
    await stage.click('server-type-dropdown');
    await stage.page.getByRole('option', { name: /stdio/i }).first().click();
    await stage.id('command-input').waitFor();
  });
  await step('MCP: a test of no program', async () => {
    await fill('walked', join(directory, 'no-such-program'), ['one']);
    return tried();
  });
  await step('MCP: a test', async () => {
    await fill('walked', process.execPath, [program]);
    return tried();
  });
  await step('MCP: add', async () => {
    await stage.page.getByTestId('add-mcp-server-form').getByTestId('submit-button').click();
    await item('walked').first().waitFor();
    return known();
  });
  await step('MCP: a name that is taken', async () => {
    await stage.click('mcp-add-custom-server');
    await stage.click('server-type-dropdown');
    await stage.page.getByRole('option', { name: /stdio/i }).first().click();
    await fill('walked', process.execPath, [program]);
    await stage.page.getByTestId('add-mcp-server-form').getByTestId('submit-button').click();
    await stage.page.waitForTimeout(1000);
    const open = await stage.page.getByTestId('add-mcp-server-form').count();
    await stage.click('cancel-button');
    await stage.page.getByTestId('mcp-custom-editor').waitFor({ state: 'hidden' });
    return { open, known: (await known()).length };
  });
  await step('MCP: switch off and on', async () => {
    const seen = [];
    for (let times = 0; times < 2; times += 1) {
      const answer = stage.page.waitForResponse((one) => one.request().method() === 'PATCH');
      const asked = stage.page.waitForRequest((one) => one.method() === 'PATCH');
      await stage.clickUntil(item('walked').getByTestId(/^mcp-installed-toggle-/), asked);
      await answer;
      seen.push((await known())[0].enabled);
    }
    return seen;
  });
  await step('MCP: edit', async () => {
    await stage.clickUntil(item('walked'), stage.id('edit-mcp-server-form').waitFor());
    await stage.id('args-input').fill([program, 'more'].join('\n'));
    await stage.page.getByTestId('edit-mcp-server-form').getByTestId('submit-button').click();
    await stage.page.getByTestId('edit-mcp-server-form').waitFor({ state: 'hidden' });
    return known();
  });
  await step('MCP: delete', async () => {
    await stage.clickUntil(item('walked'), stage.id('mcp-custom-editor-delete').waitFor());
    await stage.clickUntil(stage.id('mcp-custom-editor-delete'), stage.id('confirmation-modal').waitFor());
    await stage.id('confirmation-modal').getByTestId('confirm-button').click();
    await item('walked').waitFor({ state: 'hidden' });
    return known();
  });
}
