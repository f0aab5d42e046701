// The chip with the model: the UI offers the models that it knows of an agent, if it knows the agent.

const KNOWN = ['gpt-5.6-sol', 'gpt-5.5'];

export async function modelChip({ stage, step, api, start, send, conversation, settled, useAgent, answer }) {
  const choose = async (model) => {
    await stage.click('chat-input-llm-model');
    const answered = stage.page.waitForResponse((one) => one.url().endsWith('/switch_acp_model'));
    await stage.click(`chat-input-acp-model-option-${model}`);
    return (await answered).status();
  };

  await stage.go('/');
  await step('a known agent', async () => {
    await useAgent('known', 'codex', `named-models=${KNOWN.join(',')}`);
    await stage.go('/');
    await start('!text a known agent');
    await answer('a known agent').first().waitFor();
    return settled();
  });
  await step('choose its model', async () => {
    const status = await choose(KNOWN[0]);
    await stage.page.getByTestId('chat-input-llm-model').getByText('GPT-5.6 Sol').waitFor();
    return { status, model: (await api(`/api/conversations/${conversation()}`)).current_model_id };
  });
  await step('choose a model that the agent has not', () => choose('gpt-5.6-luna'));
  await step('the model stays', async () => {
    await send('!text with the model');
    await answer('with the model').first().waitFor();
    await settled();
    await stage.page.reload();
    await stage.page.getByTestId('chat-input-llm-model').getByText('GPT-5.6 Sol').waitFor();
    return (await api(`/api/conversations/${conversation()}`)).current_model_id;
  });
  await useAgent('walk', 'custom');
}
