// The server is killed with the page open and started again. The person only waits.

export async function restart({ stage, step, api, ask, start, send, conversation, settled, answer }) {
  const told = async () => {
    const page = await api(`/api/conversations/${conversation()}/events/search?limit=100`);
    return page.items.filter((one) => one.kind !== 'ConversationStateUpdateEvent');
  };
  const shown = (text) => (text.startsWith('!') ? stage.page.getByTestId('user-message').filter({ hasText: text, visible: true }) : answer(text)).count();

  await step('before the server is killed', async () => {
    await stage.go('/');
    await start('!text one before');
    await answer('one before').first().waitFor();
    return settled();
  });
  await step('the server killed in mid-turn', async () => {
    await send('!slow 400 50');
    await stage.page.getByTestId('chat-interface').getByText(/\bs5\b/).first().waitFor();
    stage.away = true;
    await ask('kill');
    await stage.page.waitForTimeout(1500);
    return shown('one before');
  });
  await step('the server is back', async () => {
    await ask('start');
    // No reload: the page finds it by itself.
    for (let tries = 0; tries < 100; tries += 1) {
      const info = await api(`/api/conversations/${conversation()}`).catch(() => null);
      if (info?.execution_status && info.execution_status !== 'running') break;
      await stage.page.waitForTimeout(200);
    }
    stage.away = false;
    return settled();
  });
  await step('the page goes on', async () => {
    await send('!text two after');
    await answer('two after').first().waitFor();
    return settled();
  });
  await step('nothing is there twice', async () => {
    const events = await told();
    const twice = events.length - new Set(events.map((one) => one.id)).size;
    const users = events.filter((one) => one.kind === 'MessageEvent' && one.source === 'user').map((one) => one.llm_message.content[0].text);
    const counts = async () => {
      const found = [];
      for (const text of ['!text one before', 'one before', '!slow 400 50', '!text two after', 'two after']) found.push([text, await shown(text)]);
      return found;
    };
    const live = await counts();
    await stage.page.reload();
    await answer('two after').first().waitFor();
    return { twice, users, live, reloaded: await counts() };
  });
}
