// A conversation with a real agent, whose profile is active already.

export async function realAgent({ stage, step, start, send, settled }) {
  await step('real agent: start from home', async () => {
    await stage.go('/');
    await start('say one please');
    await stage.page.getByTestId('agent-message').getByText(/ECHO: say one please/).first().waitFor({ timeout: 60000 });
    return settled();
  });
  await step('real agent: a second turn', async () => {
    await send('say two please');
    await stage.page.getByTestId('agent-message').getByText(/ECHO: say two please/).first().waitFor({ timeout: 60000 });
    return settled();
  });
  await step('real agent: reload', async () => {
    await stage.page.reload();
    await stage.page.getByTestId('agent-message').getByText(/ECHO: say two please/).first().waitFor();
    return stage.page.getByTestId('agent-message').getByText(/ECHO: say (one|two) please/).count();
  });
}
