// A conversation from its start to its end, and all that its page offers.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export async function conversationPage({ stage, step, api, start, send, conversation, settled, directory }) {
  await step('home', async () => {
    await stage.go('/');
    await stage.id('home-chat-launcher').waitFor();
    await stage.page.waitForTimeout(1500);
  });
  await step('start from home', async () => {
    await start('!text hello from the browser');
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
    await stage.says(/\bs1\b/, 'chat-interface');
    await stage.click('stop-button');
    return settled(['paused', 'error']);
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
  await step('the model of a custom agent', async () => {
    await stage.click('chat-input-llm-model');
    const popover = stage.id('chat-input-llm-model-popover');
    await popover.waitFor();
    // The UI knows of no other models of it.
    const shown = (await popover.innerText()).split('\n').filter((one) => one.trim());
    await stage.page.keyboard.press('Escape');
    await stage.click('chat-input');
    await popover.waitFor({ state: 'hidden' });
    return shown;
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
    await start('!text the second one');
    await stage.says(/the second one/, 'chat-interface');
    return settled();
  });
}
