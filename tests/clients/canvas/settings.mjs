// The pages of the settings, and those beside them.

export async function settingsPages({ stage, step, api }) {
  for (const page of ['llm', 'condenser', 'agent-context', 'agents', 'agent', 'app', 'verification', 'secrets']) {
    await step(`settings: ${page}`, async () => {
      await stage.go(`/settings/${page}`);
      await stage.quiet();
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
      await stage.quiet();
      if (await stage.page.getByText('404 Not Found').count()) throw new Error('no such page');
    });
  }
}
