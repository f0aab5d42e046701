// Confirmation mode, from its switch in the settings to both of its buttons. With it the
// UI has a person asked about what is risky, as a command is.

export async function confirmations({ stage, step, api, start, send, conversation, settled, answer }) {
  const answered = async (button) => {
    const status = await settled(['waiting_for_confirmation', 'finished', 'error']);
    const asked = status === 'waiting_for_confirmation';
    if (asked) await stage.click(`action-${button}-button`);
    const after = await settled(['finished', 'idle', 'error']);
    if (asked) await stage.id(`action-${button}-button`).waitFor({ state: 'hidden' });
    const told = await api(`/api/conversations/${conversation()}/events/search?limit=100&sort_order=TIMESTAMP_DESC`);
    const rejections = told.items.filter((one) => one.kind === 'UserRejectObservation').length;
    const last = answer(/allowed|rejected/).last();
    await last.waitFor();
    return { asked, after, rejections, said: /allowed|rejected/.exec(await last.innerText())[0] };
  };

  await step('confirmation mode on', async () => {
    await stage.go('/settings/verification');
    await stage.page.getByTestId(/^sdk-settings-.*confirmation_mode$/).first().locator('xpath=ancestor-or-self::label').click();
    await stage.page.getByRole('button', { name: /save/i }).first().click();
    for (let tries = 0; tries < 50; tries += 1) {
      if ((await api('/api/settings')).conversation_settings.confirmation_mode) break;
      await stage.page.waitForTimeout(100);
    }
    return (await api('/api/settings')).conversation_settings.confirmation_mode;
  });
  await step('reject', async () => {
    await stage.go('/');
    await start('!perm');
    return answered('reject');
  });
  await step('accept', async () => {
    await send('!perm');
    return answered('confirm');
  });
  await step('confirmation mode off', async () => {
    await api('/api/settings', { method: 'PATCH', body: JSON.stringify({ conversation_settings_diff: { confirmation_mode: false } }) });
    return (await api('/api/settings')).conversation_settings.confirmation_mode;
  });
}
