// A directory of the person's own, which is a git repository: opened from home, its commits, its changes, git's actions.

import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

function makeRepository(directory) {
  const git = (...words) => execFileSync('git', ['-C', directory, '-c', 'user.name=A', '-c', 'user.email=a@b.invalid', '-c', 'init.defaultBranch=main', ...words], { stdio: 'ignore' });
  mkdirSync(directory, { recursive: true });
  git('init', '-q');
  for (const name of ['first', 'second']) {
    writeFileSync(join(directory, `${name}.txt`), `${name}\n`);
    git('add', '-A');
    git('commit', '-q', '-m', `the ${name} commit`);
  }
  writeFileSync(join(directory, 'first.txt'), 'changed\n');
  writeFileSync(join(directory, 'third.txt'), 'new\n');
}

export async function workspace({ stage, step, api, start, conversation, settled, answer }) {
  const rows = (name) => stage.page.getByTestId(name).filter({ visible: true });

  await stage.go('/');
  await step('add a workspace', async () => {
    const { home } = await api('/api/file/home');
    makeRepository(join(home, 'projects', 'walked'));
    await stage.click('open-workspace-button');
    await stage.page.getByTestId('open-workspace-dialog-body').getByTestId('workspace-dropdown').click();
    await stage.click('add-workspaces-button');
    await stage.click('folder-browser-entry-projects');
    await stage.click('folder-browser-entry-walked');
    await stage.page.getByTestId('folder-browser-current-path').getByText(/walked$/).waitFor();
    await stage.click('folder-browser-use');
    await stage.page.getByTestId('folder-browser-modal').waitFor({ state: 'hidden' });
    await stage.page.getByTestId('open-workspace-dialog-body').getByTestId('workspace-launch-button').and(stage.page.locator(':enabled')).waitFor();
    return (await api('/api/workspaces')).workspaces.map((one) => one.name);
  });
  await step('open the workspace', async () => {
    await stage.click('workspace-launch-button');
    await stage.page.getByTestId('open-workspace-dialog-body').waitFor({ state: 'hidden' });
    await start('!cwd');
    await answer(/projects\/walked/).first().waitFor();
    await settled();
    return (await api(`/api/conversations/${conversation()}`)).workspace.working_dir.endsWith('projects/walked');
  });
  await step('its commits', async () => {
    await stage.click('right-panel-toggle');
    await stage.click('conversation-tab-commits');
    await rows('commit-row').nth(1).waitFor();
    return rows('commit-row').getByRole('strong').allInnerTexts();
  });
  await step('changes of a commit', async () => {
    await rows('commit-row-toggle').first().click();
    await stage.says('second.txt', 'commit-row-content');
    return rows('diff-change-list').count();
  });
  await step('changes that are not committed', async () => {
    await stage.click('uncommitted-changes-row-toggle');
    for (const name of ['first.txt', 'third.txt']) await stage.says(name, 'uncommitted-changes-row-content');
    return rows('uncommitted-changes-count').first().innerText();
  });
  await step('a diff', async () => {
    const asked = stage.page.waitForResponse((one) => one.url().includes('/git/diff'));
    await stage.page.getByTestId('uncommitted-changes-row-content').getByText('first.txt').first().click();
    const answer = await asked;
    return { status: answer.status(), ...(await answer.json()) };
  });
  await step('git actions', async () => {
    const said = [];
    for (const action of ['commit', 'pull', 'push', 'create-pr', 'create-new-branch']) {
      await stage.click('conversation-git-actions-toggle');
      await stage.click(`conversation-git-actions-${action}`);
      await stage.page.waitForTimeout(300);
      said.push((await stage.id('chat-input').innerText()).length > 10);
      await stage.id('chat-input').fill('');
    }
    return said;
  });
}
