// The first visit: what a new person is asked.

// The question for a server. Where one answers, the UI goes on by itself, perhaps while the button is being clicked.
async function pastBackend(stage) {
  const agents = stage.id('onboarding-agent-option-codex');
  await agents.or(stage.id('onboarding-backend-next')).first().waitFor();
  if (!await agents.count()) await stage.id('onboarding-backend-next').click({ timeout: 3000 }).catch(() => {});
  await agents.waitFor();
}

export async function firstVisit({ stage, step, api }) {
  await step('onboarding: backend', async () => {
    await stage.go('/');
    await pastBackend(stage);
  });
  await step('the profile that is there', async () => {
    const { profiles } = await api('/api/agent-profiles');
    return profiles.map(({ name, agent_kind: kind, acp_server: server }) => ({ name, kind, server }));
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
}

// The UI starts conversations by the active profile: one of the scripted agent.
export async function scriptedProfile({ stage, step, useAgent }) {
  await stage.go('/');
  await step('a profile of the scripted agent', () => useAgent('walk', 'custom'));
}

// The agent that is chosen already when a person comes: the peer's own.
export async function builtInAgent({ stage, step, api, write }) {
  await step('onboarding: OpenHands', async () => {
    await stage.go('/');
    await pastBackend(stage);
    await stage.click('onboarding-agent-next');
    await stage.id('onboarding-llm-settings').waitFor();
    await stage.page.waitForTimeout(1500);
    return (await stage.page.getByTestId('sdk-schema-unavailable').count()) === 0;
  });
  await step('onboarding: its model', async () => {
    const panel = stage.id('onboarding-llm-settings');
    await panel.locator('input[type=password]').filter({ visible: true }).first().fill('sk-onboarding-0123456789');
    await stage.click('onboarding-llm-next');
    await stage.id('onboarding-step-say-hello').waitFor();
    return (await api('/api/settings')).agent_settings.agent_kind;
  });
  await step('onboarding: home', async () => {
    await stage.click('onboarding-hello-close');
    await stage.id('home-chat-launcher').waitFor();
  });
  await step('start without an agent chosen', async () => {
    await write('hello');
    const answer = stage.page.waitForResponse((one) => one.url().endsWith('/api/conversations') && one.request().method() === 'POST');
    await stage.click('submit-button');
    const status = (await answer).status();
    await stage.page.waitForTimeout(1500);
    return { status, opened: /conversations\/[0-9a-f-]{36}/.test(stage.page.url()) };
  });
}
