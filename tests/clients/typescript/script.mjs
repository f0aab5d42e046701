// Every public method of the TypeScript client against one server; prints what came of it, as JSON.
//
//   script.mjs PACKAGE URL DIRECTORY COMMAND
//
// PACKAGE is the directory of @openhands/typescript-client, COMMAND the JSON array that starts a scripted agent.
// The same script runs against Ostler and the peer's server; `comparison.py` compares.

import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { publicMethods } from './inventory.mjs';
import { BYTES, Trace } from './trace.mjs';

const [packageDirectory, url, directory, commandText] = process.argv.slice(2);
const command = JSON.parse(commandText);
// The package is an ES module that asks for `ws` by `require`, which Node.js does not give to such: else it has no sockets.
globalThis.require = createRequire(join(packageDirectory, 'package.json'));
const sdk = await import(pathToFileURL(join(packageDirectory, 'dist/index.js')));
const clients = await import(pathToFileURL(join(packageDirectory, 'dist/clients.js')));

const work = join(directory, 'workspace');
const repository = join(work, 'repository');
mkdirSync(repository, { recursive: true });
const trace = new Trace([
  [directory, '<directory>'],
  [url, '<url>'],
  [url.replace('http', 'ws'), '<socket>'],
  [new URL(url).port, '<port>'],
  [command[0], '<program>'],
], command);
const step = trace.step.bind(trace);
const client = (name) => trace.watch(new (clients[name] ?? sdk[name])({ host: url }));
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const keys = (value) => Object.keys(value ?? {}).sort();
const identity = '11111111-2222-4333-8444-555555555555';
const nobody = '99999999-2222-4333-8444-555555555555';
const agent = { kind: 'ACPAgent', acp_server: 'custom', acp_command: command };
const place = { kind: 'LocalWorkspace', working_dir: work };
const user = (text) => ({ role: 'user', content: [{ type: 'text', text }] });
const TOLD = new Set(['MessageEvent', 'ActionEvent', 'ObservationEvent', 'ACPToolCallEvent', 'ConversationErrorEvent', 'UserRejectObservation']);

function git(...words) {
  const identityOfGit = ['-c', 'user.name=A', '-c', 'user.email=a@b.invalid', '-c', 'init.defaultBranch=main'];
  execFileSync('git', ['-C', repository, ...identityOfGit, ...words], { stdio: 'ignore' });
}
git('init', '-q');
writeFileSync(join(repository, 'kept.txt'), 'before\n');
git('add', '-A');
git('commit', '-q', '-m', 'first');
writeFileSync(join(repository, 'kept.txt'), 'after\n');
writeFileSync(join(repository, 'new.txt'), 'new\n');

async function settled(id) {
  for (let tries = 0; tries < 600; tries += 1) {
    const info = await conversations.getConversation(id);
    if (!['running', 'idle'].includes(info.execution_status)) return info.execution_status;
    await pause(50);
  }
  return 'still running';
}

async function turn(id, text) {
  await conversations.sendEvent(id, user(text), { run: true });
  await pause(100);
  return settled(id);
}

// ------------------------------------------------------------------ the server
const server = client('ServerClient');
// What each server says of itself stays out; the tools and capabilities are compared by name.
const about = ({ python_version: python, title, ostler_version: version, ...rest }) => ({ ...rest, capabilities: rest.capabilities.sort(), usable_tools: rest.usable_tools.sort() });
await step('server root', () => server.getRoot(), about);
await step('alive', () => server.getAlive());
await step('health', () => server.getHealth());
await step('ready', () => server.getReady());
await step('server info', () => server.getServerInfo(), about);
const http = trace.watch(new sdk.HttpClient({ baseUrl: url }));
await step('http get', () => http.get('/alive'), ({ data, status }) => ({ data, status }));
await step('http request, unknown route', () => http.request({ method: 'GET', url: '/api/no-such-route' }));
await step('http post, unknown route', () => http.post('/api/no-such-route', { some: 'x'.repeat(100000) }));
await step('http put, wrong method', () => http.put('/api/conversations', {}));
await step('http patch, no conversation', () => http.patch(`/api/conversations/${nobody}`, { title: 'x' }));
await step('http delete, no conversation', () => http.delete(`/api/conversations/${nobody}`));
const whole = trace.watch(new clients.AgentServerClient({ host: url }));
await step('agent server client: get', () => whole.get('/alive'));
await step('agent server client: request', () => whole.request({ method: 'GET', path: '/health' }));
await step('agent server client: post', () => whole.post('/api/hooks', { project_dir: work }));
await step('agent server client: patch', () => whole.patch('/api/settings', {}));
await step('agent server client: put', () => whole.put('/api/settings/secrets', { name: 'OTHER', value: 'value' }));
await step('agent server client: delete', () => whole.delete('/api/settings/secrets/OTHER'));

// ------------------------------------------------------------------ settings
const settings = client('SettingsClient');
// Each server's agent by default is its own: once it is set, all values are compared.
const unset = ({ agent_settings: own, ...rest }) => rest;
await step('settings', () => settings.getSettings(), unset);
await step('settings in clear', () => settings.getSettings({ exposeSecrets: 'plaintext' }), unset);
await step('settings encrypted', () => settings.getSettings({ exposeSecrets: 'encrypted' }), unset);
await step('update settings', () => settings.updateSettings({ misc_settings_diff: { asked: 'yes' } }), unset);
await step('agent kind acp', () => settings.updateSettings({ agent_settings_diff: { agent_kind: 'acp', acp_server: 'custom', acp_command: command } }));
await step('agent kind acp, read', () => settings.getSettings());
await step('agent kind acp, in clear', () => settings.getSettings({ exposeSecrets: 'plaintext' }));
await step('empty update', () => settings.updateSettings({}));
await step('agent schema', () => settings.getAgentSchema(), (value) => ({ keys: keys(value), sections: value.sections.map((one) => one.key).sort() }));
await step('conversation schema', () => settings.getConversationSchema(), (value) => ({ keys: keys(value), sections: value.sections.map((one) => one.key).sort() }));
const stdio = { transport: 'stdio', command: 'true', args: ['one'] };
await step('create MCP server', () => settings.createMcpServer('first', stdio));
await step('create MCP server again', () => settings.createMcpServer('first', stdio));
await step('create MCP server, bad', () => settings.createMcpServer('bad', { command: 'true', nonsense: 1 }), () => 'taken');
await step('patch MCP server', () => settings.patchMcpServer('first', { args: ['two'] }));
await step('patch MCP server, none', () => settings.patchMcpServer('none', { args: ['two'] }));
await step('delete MCP server', () => settings.deleteMcpServer('first'));
await step('delete MCP server, none', () => settings.deleteMcpServer('first'));
await step('secrets', () => settings.listSecrets());
await step('upsert secret', () => settings.upsertSecret({ name: 'UI_TOKEN', value: 'token-value', description: 'a token' }));
await step('secrets after', () => settings.listSecrets());
await step('secret', () => settings.getSecret('UI_TOKEN'));
await step('secret, none', () => settings.getSecret('NONE'));
await step('delete secret', () => settings.deleteSecret('UI_TOKEN'));
await step('delete secret, none', () => settings.deleteSecret('UI_TOKEN'));

// ------------------------------------------------------------------ profiles
const llm = { model: 'openai/some', api_key: 'sk-some', usage_id: 'default' };
const detail = (value) => ({ keys: keys(value), model: value.config?.model, key: value.config?.api_key, set: value.api_key_set });
await step('LLM profiles by settings', () => settings.listProfiles());
await step('save LLM profile by settings', () => settings.saveProfile('first', { llm, include_secrets: true }));
await step('LLM profile by settings', () => settings.getProfile('first'), detail);
await step('rename LLM profile by settings', () => settings.renameProfile('first', 'second'));
await step('delete LLM profile by settings', () => settings.deleteProfile('second'));
const profiles = client('ProfilesClient');
await step('LLM profiles', () => profiles.listProfiles());
await step('save LLM profile', () => profiles.saveProfile('fast', { llm, include_secrets: true }));
await step('save LLM profile, bad name', () => profiles.saveProfile('no/good', { llm }), () => 'taken');
await step('LLM profiles after', () => profiles.listProfiles());
await step('LLM profile', () => profiles.getProfile('fast'), detail);
await step('LLM profile in clear', () => profiles.getProfile('fast', { exposeSecrets: 'plaintext' }), detail);
await step('LLM profile, none', () => profiles.getProfile('none'));
await step('rename LLM profile', () => profiles.renameProfile('fast', 'faster'));
await step('rename LLM profile, none', () => profiles.renameProfile('fast', 'faster'));
await step('activate LLM profile', () => profiles.activateProfile('faster'));
await step('LLM profiles, one active', () => profiles.listProfiles());
await step('validate LLM profile', () => profiles.validateProfile('faster', { llm: { ...llm, base_url: 'http://127.0.0.1:9' } }), (value) => ({ keys: keys(value), valid: value.valid }));
const metas = client('MetaProfilesClient');
const meta = { classifier_model: 'faster', default_model: 'faster', classes: [{ name: 'easy', description: 'easy work', model: 'faster' }] };
await step('meta profiles', () => metas.listMetaProfiles());
await step('save meta profile', () => metas.saveMetaProfile('routing', meta));
await step('meta profiles after', () => metas.listMetaProfiles());
await step('meta profile', () => metas.getMetaProfile('routing'));
await step('meta profile, none', () => metas.getMetaProfile('none'));
await step('activate meta profile', () => metas.activateMetaProfile('routing'));
await step('delete meta profile', () => metas.deleteMetaProfile('routing'));
const agents = client('AgentProfilesClient');
const summaries = (value) => ({ keys: keys(value), each: value.profiles.map(keys), names: value.profiles.map((one) => one.name).sort() });
await step('agent profiles', () => agents.listAgentProfiles());
await step('save agent profile', () => agents.saveAgentProfile('mine', { agent_kind: 'acp', acp_server: 'custom', acp_command: command[0], acp_args: command.slice(1) }));
await step('save agent profile of the built-in kind', () => agents.saveAgentProfile('builtin', { agent_kind: 'openhands', llm_profile_ref: 'faster' }));
await step('save agent profile, mixed', () => agents.saveAgentProfile('mixed', { agent_kind: 'acp', llm_profile_ref: 'faster' }), () => 'taken');
await step('agent profiles after', () => agents.listAgentProfiles(), (value) => summaries({ ...value, profiles: value.profiles.filter((one) => one.name !== 'default') }));
const mine = await step('agent profile', () => agents.getAgentProfile('mine'), (value) => ({ keys: keys(value), profile: value.profile }));
await step('agent profile, none', () => agents.getAgentProfile('none'));
await step('materialize agent profile', () => agents.materializeAgentProfile('mine'));
await step('materialize agent profile of the built-in kind', () => agents.materializeAgentProfile('builtin'), (value) => ({ keys: keys(value), valid: value.valid, errors: value.errors, resolved: value.llm_profile_resolved, key: value.llm_api_key_set }));
await step('materialize agent profile, none', () => agents.materializeAgentProfile('none'));
await step('activate agent profile', () => agents.activateAgentProfile(mine.profile.id));
await step('activate agent profile, none', () => agents.activateAgentProfile(nobody));
await step('rename agent profile', () => agents.renameAgentProfile('mine', 'yours'));
await step('delete LLM profile in use', () => profiles.deleteProfile('faster'));
await step('delete agent profile', () => agents.deleteAgentProfile('yours'));
await step('delete agent profile of the built-in kind', () => agents.deleteAgentProfile('builtin'));
await step('delete agent profile, none', () => agents.deleteAgentProfile('none'));
await step('delete LLM profile', () => profiles.deleteProfile('faster'));

// ------------------------------------------------------------------ lists
const models = client('LLMMetadataClient');
await step('providers', () => models.getProviders());
await step('models', () => models.getModels());
await step('models of a provider', () => models.getModels('openai'));
await step('verified models', () => models.getVerifiedModels());
await step('subscription models', () => models.getOpenAISubscriptionModels());
await step('subscription status', () => models.getOpenAISubscriptionStatus());
await step('subscription logout', () => models.logoutOpenAISubscription());
await step('subscription poll', () => models.pollOpenAISubscriptionDeviceLogin('none'), () => 'taken');
await step('subscription start', () => models.startOpenAISubscriptionDeviceLogin(), () => 'taken');
await step('tools', () => client('ToolClient').listTools(), (names) => names.sort());
await step('sub-agents', () => client('SubAgentsClient').getSubAgents({ load_user: false, load_project: true, project_dir: work }), ({ agents: all }) => all.map(({ source, ...rest }) => ({ ...rest, source: source.replace(/^.*(?=openhands\/tools\/)/, '') })));
await step('hooks', () => client('HooksClient').loadHooks({ project_dir: work }));
mkdirSync(join(work, '.openhands'), { recursive: true });
const hookFile = { hooks: { stop: [{ matcher: '*', hooks: [{ command: 'true' }] }] } };
writeFileSync(join(work, '.openhands', 'hooks.json'), JSON.stringify(hookFile.hooks));
await step('hooks of a project', () => client('HooksClient').loadHooks({ project_dir: work }));
const skills = client('SkillsClient');
mkdirSync(join(work, '.agents', 'skills', 'knock'), { recursive: true });
writeFileSync(join(work, '.agents', 'skills', 'knock', 'SKILL.md'), '---\nname: knock\ndescription: How to knock.\n---\nKnock twice.\n');
const local = { load_public: false, load_user: false, load_org: false, load_project: true, project_dir: work };
await step('skills', () => skills.getSkills(local));
await step('skills of an empty place', () => skills.getSkills({ ...local, project_dir: repository }));
await step('installed skills', () => skills.listInstalledSkills());
await step('installed skill, none', () => skills.getInstalledSkill('none'));
await step('toggle skill, none', () => skills.toggleSkill('none', true));
await step('uninstall skill, none', () => skills.uninstallSkill('none'));
await step('refresh skill, none', () => skills.refreshSkill('none'));
await step('install skill', () => skills.installSkill({ source: join(work, '.agents', 'skills', 'knock') }), keys);
await step('skill marketplace', () => skills.getMarketplace());
await step('sync skills', () => skills.syncSkills());
const plugins = client('PluginsClient');
await step('plugins', () => plugins.getPlugins({ project_dir: work }));
await step('installed plugins', () => plugins.listInstalledPlugins());
await step('installed plugin, none', () => plugins.getInstalledPlugin('none'));
await step('enable plugin, none', () => plugins.setPluginEnabled('none', true));
await step('uninstall plugin, none', () => plugins.uninstallPlugin('none'));
await step('refresh plugin, none', () => plugins.refreshPlugin('none'));
await step('install plugin, none', () => plugins.installPlugin({ source: join(directory, 'no-such-plugin') }), keys);
await step('plugin marketplace', () => plugins.getPluginsMarketplace());
const vscode = client('VSCodeClient');
await step('vscode status', () => vscode.getStatus());
await step('vscode url', () => vscode.getUrl({ workspaceDir: work }), (value) => value);
await step('desktop url', () => client('DesktopClient').getUrl(), (value) => value);
const places = client('WorkspacesClient');
await step('workspaces', () => places.listWorkspaces());
await step('add workspaces', () => places.addWorkspaces([{ id: 'one', name: 'One', path: work }]));
await step('add workspace parents', () => places.addWorkspaceParents([{ id: 'up', name: 'Up', path: directory }]));
await step('workspaces after', () => places.listWorkspaces());
await step('delete workspace', () => places.deleteWorkspace(work));
await step('delete workspace, none', () => places.deleteWorkspace(work));
await step('delete workspace parent', () => places.deleteWorkspaceParent(directory));
const mcp = client('MCPClient');
const helloServer = `
const lines = require('node:readline').createInterface({ input: process.stdin });
lines.on('line', (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    initialize: { protocolVersion: params?.protocolVersion ?? '2025-06-18', capabilities: { tools: {} }, serverInfo: { name: 'hello', version: '1' } },
    'tools/list': { tools: [{ name: 'hello', description: 'Says hello.', inputSchema: { type: 'object', properties: {} } }] },
    'tools/call': { content: [{ type: 'text', text: 'hello there' }] },
  };
  const answer = results[method] ? { result: results[method] } : { error: { code: -32601, message: 'no such method' } };
  process.stdout.write(JSON.stringify({ jsonrpc: '2.0', id, ...answer }) + '\\n');
});`;
const hello = { type: 'stdio', command: process.execPath, args: ['-e', helloServer] };
await step('test MCP server', () => mcp.testServer({ name: 'hello', server: hello }));
await step('test MCP server, a call', () => mcp.testServer({ name: 'hello', server: hello, tool_call: { name: 'hello', arguments: {} } }));
await step('test MCP server, no program', () => mcp.testServer({ name: 'none', server: { type: 'stdio', command: join(directory, 'none'), args: [] } }), ({ error, ...rest }) => ({ ...rest, error: typeof error }));
await step('test MCP server, nobody there', () => mcp.testServer({ name: 'none', server: { type: 'http', url: 'http://127.0.0.1:9/mcp' } }), ({ error, ...rest }) => ({ ...rest, error: typeof error }));
await step('start OAuth, nobody there', () => mcp.startOAuth({ name: 'none', server: { type: 'http', url: 'http://127.0.0.1:9/mcp', auth: 'oauth' }, timeout: 2 }), ({ error, ...rest }) => ({ ...rest, error: typeof error }));
await step('OAuth status, none', () => mcp.getOAuthStatus(nobody));
await step('OAuth callback, none', () => mcp.submitOAuthCallback(nobody, { callback_url: 'http://127.0.0.1/callback?code=1&state=2' }));

// ------------------------------------------------------------------ files, commands, git
const files = client('FileClient');
const remote = trace.watch(new sdk.RemoteWorkspace({ host: url, workingDir: work }));
await step('home', () => files.getHome(), (value) => ({ keys: keys(value), home: typeof value.home, locations: value.locations }));
await step('subdirectories', () => files.searchSubdirectories(work));
await step('subdirectories, hidden', () => files.searchSubdirectories(work, { include_hidden: true, limit: 1 }));
await step('subdirectories, none', () => files.searchSubdirectories(join(work, 'none')));
await step('subdirectories, relative', () => files.searchSubdirectories('relative'));
await step('upload text file', () => files.uploadTextFile('text\n', join(work, 'deep', 'text.txt')));
await step('upload file', () => files.uploadFile(new Blob(['blob\n']), join(work, 'blob.txt'), 'blob.txt'));
await step('upload, relative', () => files.uploadTextFile('text\n', 'relative.txt'));
await step('download text file', () => files.downloadTextFile(join(work, 'deep', 'text.txt')));
await step('download file', () => files.downloadFile(join(work, 'blob.txt')), (value) => value.byteLength);
await step('download, none', () => files.downloadTextFile(join(work, 'none')));
await step('download, a directory', () => files.downloadTextFile(work));
await step('download, relative', () => files.downloadTextFile('relative'));
await step('workspace upload', () => remote.fileUpload('content\n', join(work, 'workspace.txt')));
await step('workspace upload text', () => remote.uploadText('content\n', join(work, 'workspace.txt'), 'workspace.txt'));
await step('workspace upload object', () => remote.uploadFileObject(new File(['content\n'], 'object.txt'), join(work, 'object.txt')));
await step('workspace download', () => remote.fileDownload(join(work, 'workspace.txt')), ({ content, ...rest }) => ({ ...rest, kind: content?.constructor.name }));
await step('workspace download as text', () => remote.downloadAsText(join(work, 'workspace.txt')));
await step('workspace download as blob', () => remote.downloadAsBlob(join(work, 'workspace.txt')), (value) => value.size);
await step('workspace download and save', () => remote.downloadAndSave(join(work, 'workspace.txt')), () => 'saved');
await step('git changes', () => remote.gitChanges(repository));
await step('git changes, no repository', () => remote.gitChanges(join(work, 'deep')));
await step('git diff', () => remote.gitDiff(join(repository, 'kept.txt')));
await step('git diff, new', () => remote.gitDiff(join(repository, 'new.txt')));
await step('git diff, none', () => remote.gitDiff(join(repository, 'none.txt')));
await step('git diff against a ref', () => remote.gitDiff(join(repository, 'kept.txt'), { ref: 'HEAD' }));
await step('execute command', () => remote.executeCommand('echo out; echo err >&2; exit 3', work));
await step('workspace session', () => remote.startWorkspaceSession(identity));
await step('delete workspace session', () => remote.deleteWorkspaceSession());
const bash = client('BashClient');
const heard = [];
const bashSocket = trace.watch(new sdk.BashWebSocketClient({ host: url, callback: (event) => heard.push(event) }));
bashSocket.start();
await pause(1000);
await step('clear bash events', () => bash.clearEvents());
const output = await step('execute', () => bash.executeCommand('echo one; echo two >&2; exit 3', work, 20));
await step('execute, nothing said', () => bash.executeCommand({ command: 'true' }));
await step('execute, too long', () => bash.executeCommand('sleep 20', work, 1), ({ stdout, stderr, ...rest }) => rest);
await step('execute, no such place', () => bash.executeCommand('pwd', join(directory, 'none')), ({ exit_code: code, kind }) => ({ kind, failed: code !== 0 }));
const started = await step('start', () => bash.startCommand('echo begun; sleep 0.2; echo ended'));
await pause(1000);
await step('bash events', () => bash.searchEvents({ command_id__eq: started?.id, sort_order: 'TIMESTAMP', limit: 10 }), (page) => ({ keys: keys(page), items: page.items.map(({ kind, exit_code: code, order }) => ({ kind, last: kind === 'BashOutput' ? code !== null : null, first: order === 0 })).filter((one, at, all) => one.kind === 'BashCommand' || at === all.length - 1).map(({ kind, last }) => ({ kind, last })), said: page.items.map((one) => one.stdout ?? '').join('') }));
await step('bash event', () => bash.getEvent(started?.id));
await step('bash events by id', () => bash.getEvents([started?.id ?? 'none', '0'.repeat(32)]), (all) => all.map((one) => one?.kind ?? null));
await step('bash events by id, in one request', () => bash.batchGetEvents([started?.id ?? 'none', '0'.repeat(32)]), (all) => all.map((one) => one?.kind ?? null));
await step('bash events, outputs of one', () => bash.searchEvents({ kind__eq: 'BashOutput', command_id__eq: output?.command_id, limit: 1, sort_order: 'TIMESTAMP_DESC' }), (page) => page.items);
bashSocket.stop();
await step('bash socket', () => heard, (all) => ({ kinds: [...new Set(all.map((one) => one.kind))].sort(), keys: keys(all.find((one) => one.kind === 'BashOutput')) }));

// ------------------------------------------------------------------ conversations
const conversations = client('ConversationClient');
const tell = (info) => info && { keys: keys(info), id: info.id, title: info.title, tags: info.tags, status: info.execution_status, server: info.agent?.acp_server, command: info.agent?.acp_command, workspace: info.workspace, max: info.max_iterations };
await step('create', () => conversations.createConversation({ agent, workspace: place, conversation_id: identity, max_iterations: 7, tags: { made: 'here' } }), tell);
await step('create again', () => conversations.createConversation({ agent, workspace: place, conversation_id: identity }), tell);
await step('create, bad', () => conversations.createConversation({ agent: { kind: 'ACPAgent' } }), () => 'taken');
const messages = [];
const socket = trace.watch(new sdk.WebSocketCallbackClient({ host: url, conversationId: identity, callback: (event) => messages.push(event) }));
socket.start();
await pause(300);
await step('first turn', () => turn(identity, 'hello there\n!tool\n!text done'));
await pause(500);
await step('told on the socket', () => messages, (all) => all.filter((one) => TOLD.has(one.kind)).map((one) => ({ kind: one.kind, keys: keys(one) })));
await step('states on the socket', () => messages, (all) => [...new Set(all.filter((one) => one.kind === 'ConversationStateUpdateEvent').map((one) => one.key))].sort());
await step('full state', () => messages, (all) => keys(all.findLast((one) => one.key === 'full_state')?.value));
socket.stop();
const page = await step('events', () => conversations.searchEvents(identity, { limit: 100 }), (found) => ({ keys: keys(found), next: found.next_page_id, told: found.items.filter((one) => TOLD.has(one.kind)).map(({ id, parent_id: parent, ...rest }) => rest) }));
await step('events, newest first', () => conversations.searchEvents(identity, { limit: 1, kind: 'ActionEvent', sort_order: 'TIMESTAMP_DESC' }), (found) => found.items.map((one) => one.kind));
await step('events, bad limit', () => conversations.searchEvents(identity, { limit: 1000 }), () => 'taken');
const action = page?.items.find((one) => one.kind === 'ActionEvent');
await step('event', () => conversations.getEvent(identity, action.id), (one) => ({ keys: keys(one) }));
await step('event, none', () => conversations.getEvent(identity, nobody));
await step('events by id', () => conversations.getEvents(identity, [action.id, nobody]), (all) => all.map((one) => one?.kind ?? null));
await step('count of events', () => conversations.getEventCount(identity, { kind: 'ActionEvent' }));
await step('final response', () => conversations.getAgentFinalResponse(identity));
await step('secrets of a conversation', () => conversations.updateSecrets(identity, { secrets: { PLAIN: 'plain-value', STATIC: { kind: 'StaticSecret', value: 'static-value' } } }));
await step('conversation', () => conversations.getConversation(identity), tell);
await step('conversation, none', () => conversations.getConversation(nobody));
await step('conversations by id', () => conversations.getConversations([identity, nobody]), (all) => all.map((one) => one?.id ?? null));
await step('search conversations', () => conversations.searchConversations({ limit: 20, sort_order: 'UPDATED_AT_DESC' }), (found) => ({ keys: keys(found), ids: found.items.map((one) => one.id), each: found.items.map(keys) }));
await step('count conversations', () => conversations.countConversations({ status: 'finished' }));
await step('update conversation', () => conversations.updateConversation(identity, { title: 'A title', tags: { b: 'c' } }));
await step('conversation after the update', () => conversations.getConversation(identity), (info) => ({ title: info.title, tags: info.tags }));
await step('update conversation, bad', () => conversations.updateConversation(identity, { title: ' ' }), () => 'taken');
await step('security analyzer', () => conversations.setSecurityAnalyzer(identity, { kind: 'LLMSecurityAnalyzer' }));
await step('no security analyzer', () => conversations.setSecurityAnalyzer(identity, { security_analyzer: null }));
await step('policy', () => conversations.setConfirmationPolicy(identity, { kind: 'AlwaysConfirm' }));
await step('a turn that asks', () => turn(identity, '!write asked.txt content'));
await step('confirm', () => conversations.respondToConfirmation(identity, { accept: true }));
await step('after the confirmation', async () => { await pause(300); return settled(identity); });
await step('policy back', () => conversations.setConfirmationPolicy(identity, { policy: { kind: 'NeverConfirm' } }));
await step('ask', () => conversations.askAgent(identity, 'what was said?'), ({ response, ...rest }) => ({ ...rest, echoed: response.includes('what was said?') }));
await step('ask, empty', () => conversations.askAgent(identity, ''), () => 'taken');
await step('switch model', () => conversations.switchAcpModel(identity, 'small'), () => 'switched');
await step('switch model, unknown', () => conversations.switchAcpModel(identity, 'none'), () => 'switched');
await step('switch model, blank', () => conversations.switchAcpModel(identity, ' '));
await step('switch profile', () => conversations.switchProfile(identity, 'none'), () => 'switched');
await step('condense', () => conversations.condenseConversation(identity));
const forkId = '22222222-2222-4333-8444-555555555555';
await step('fork', () => conversations.forkConversation(identity, { id: forkId, title: 'A fork', tags: { d: 'e' } }), tell);
await step('fork, id taken', () => conversations.forkConversation(identity, { id: forkId }));
await step('fork from an event', () => conversations.forkConversation(identity, { from_event_id: action?.id }), tell);
await step('fork from no event', () => conversations.forkConversation(identity, { from_event_id: nobody }));
await step('fork of none', () => conversations.forkConversation(nobody, {}));
await step('turn of the fork', () => turn(forkId, 'in the fork'));
await step('navigate', () => conversations.navigateConversation(forkId, { event_id: null }), tell);
await step('navigate, no event', () => conversations.navigateConversation(forkId, { event_id: nobody }));
await step('goal, empty', () => conversations.startGoal(forkId, { objective: '' }));
await step('resume no goal', () => conversations.resumeGoal(forkId));
await step('goal', () => conversations.startGoal(forkId, { objective: '!sleep 30', max_iterations: 2 }));
await pause(500);
await step('goal while one runs', () => conversations.startGoal(forkId, { objective: 'another' }));
await step('stop the goal', () => conversations.stopGoal(forkId));
await conversations.interruptConversation(forkId).catch(() => {});
await step('switch LLM', () => conversations.switchLLM(identity, llm), () => 'switched');
await step('run', () => conversations.runConversation(identity));
await step('after the run', async () => { await pause(200); return settled(identity); });
await conversations.sendEvent(identity, user('!sleep 30'), { run: true });
await pause(300);
await step('run while running', () => conversations.runConversation(identity));
await step('interrupt', () => conversations.interruptConversation(identity));
await step('after the interrupt', () => settled(identity));
await step('pause', () => conversations.pauseConversation(identity));
await step('interrupt while nothing runs', () => conversations.interruptConversation(identity));
await step('trajectory', () => files.downloadTrajectory(identity), async (blob) => new TextDecoder('latin1').decode(new Uint8Array(await blob.arrayBuffer()).slice(0, 2)));
await step('trajectory of none', () => files.downloadTrajectory(nobody));
await step('delete', () => conversations.deleteConversation(forkId), () => 'deleted');
await step('delete again', () => conversations.deleteConversation(forkId));

// ------------------------------------------------------------------ a conversation as an object
const seen = [];
const talk = trace.watch(new sdk.RemoteConversation(agent, new sdk.RemoteWorkspace({ host: url, workingDir: work }), { callback: (event) => seen.push(event) }));
await step('object: start', () => talk.start({ maxIterations: 9 }), () => 'started');
await step('object: socket', () => talk.startWebSocketClient(), () => 'started');
await step('object: hooks of the project', () => talk.loadHooks());
await step('object: hook config', () => talk.getHookConfig());
await step('object: send', () => talk.sendMessage('in an object'), () => 'sent');
await step('object: run', () => talk.run(), () => 'ran');
await step('object: settled', () => settled(talk.id));
await pause(300);
await step('object: seen', () => seen, (all) => all.filter((one) => TOLD.has(one.kind)).map((one) => one.kind));
await step('object: stats', () => talk.conversationStats(), keys);
await step('object: final response', () => talk.getAgentFinalResponse());
await step('object: title', () => talk.setTitle('An object'), () => 'set');
await step('object: ask', () => talk.askAgent('and what now?'), (text) => text.includes('and what now?'));
await step('object: policy', () => talk.setConfirmationPolicy({ kind: 'NeverConfirm' }), () => 'set');
await step('object: analyzer', () => talk.setSecurityAnalyzer(null), () => 'set');
await step('object: confirmation', () => talk.sendConfirmationResponse(false, 'no'), () => 'sent');
await step('object: secrets', () => talk.updateSecrets({ TOKEN: 'token-value' }), () => 'set');
await step('object: switch profile', () => talk.switchProfile('none'), () => 'switched');
await step('object: switch model', () => talk.switchAcpModel('small'), () => 'switched');
await step('object: switch LLM', () => talk.switchLlm(llm), () => 'switched');
await step('object: condense', () => talk.condense(), () => 'condensed');
await step('object: fork', () => talk.fork({ title: 'Forked' }), (fork) => fork.constructor.name);
await step('object: trajectory', () => talk.downloadTrajectory(), (blob) => blob.size > 100);
await step('object: goal', () => talk.startGoal('!sleep 30', 1), () => 'started');
await pause(300);
await step('object: stop the goal', () => talk.stopGoal(), () => 'stopped');
await step('object: pause', () => talk.pause(), () => 'paused');
await settled(talk.id).catch(() => {});
await pause(3000);
await step('object: resume the goal', () => talk.resumeGoal(), () => 'resumed');
await pause(300);
await talk.stopGoal().catch(() => {});
await talk.pause().catch(() => {});
const state = trace.watch(talk.state);
await step('state: id', () => state.id === talk.id);
await step('state: refresh', () => state.refresh(), (value) => typeof value);
await step('state: execution status', () => state.getExecutionStatus(), (text) => typeof text);
await step('state: agent status', () => state.getAgentStatus(), (text) => typeof text);
await step('state: set agent status', () => state.setAgentStatus('idle'), () => 'set');
await step('state: policy', () => state.getConfirmationPolicy());
await step('state: skills', () => state.getActivatedKnowledgeSkills());
await step('state: agent', () => state.getAgent(), (one) => ({ kind: one.kind, server: one.acp_server }));
await step('state: workspace', () => state.getWorkspace());
await step('state: persistence', () => state.getPersistenceDir(), (text) => typeof text);
await step('state: dump', () => state.modelDump(), (value) => typeof value);
await step('state: dump as JSON', () => state.modelDumpJson(), (text) => typeof text);
await step('state: update', () => state.updateStateFromEvent({ kind: 'ConversationStateUpdateEvent', key: 'title', value: 'x' }), () => 'updated');
await step('state: callback', () => typeof state.createStateUpdateCallback());
const events = trace.watch(state.events);
await step('list: search', () => events.search({ limit: 1 }), (found) => found.items.length);
await step('list: count', () => events.count({ kind: 'ActionEvent' }), (found) => found > 0);
await step('list: length', () => events.length(), (found) => found > 3);
await step('list: event', () => events.getEvent(0), (one) => one?.kind);
await step('list: events', () => events.getEvents(0, 2), (all) => all.length);
const first = await events.getEvent(0).catch(() => undefined);
await step('list: by id', () => events.getEventById(first.id), (one) => one.kind);
await step('list: several by id', () => events.getEventsById([first.id, nobody]), (all) => all.map((one) => one?.kind ?? null));
await step('list: add', () => events.addEvent({ ...first, id: 'added' }), () => 'added');
await step('list: append', () => events.append({ ...first, id: 'appended' }), () => 'appended');
await step('list: callback', () => typeof events.createDefaultCallback());
await conversations.interruptConversation(talk.id).catch(() => {});
await settled(talk.id);
await step('object: navigate', () => talk.navigateTo(null), () => 'there');
await step('object: stop socket', () => talk.stopWebSocketClient(), () => 'stopped');
await step('object: close', () => talk.close(), () => 'closed');

// ------------------------------------------------------------------ the manager
const manager = trace.watch(new sdk.ConversationManager({ host: url }));
await step('manager: search', () => manager.searchConversations({ limit: 1 }), keys);
await step('manager: count', () => manager.countConversations(), (count) => count > 1);
await step('manager: by id', () => manager.getConversations([identity, nobody]), (all) => all.map((one) => one?.id ?? null));
await step('manager: all', () => manager.getAllConversations(), (all) => all.length > 1);
await step('manager: one', () => manager.getConversation(identity), tell);
const made = await step('manager: create', () => manager.createConversation(agent, { workingDir: work }), (one) => one.constructor.name);
await step('manager: load', () => manager.loadConversation(made?.id, work), (one) => one.constructor.name);
await step('manager: update', () => manager.updateConversation(made?.id, { title: 'Managed' }));
await step('manager: switch profile', () => manager.switchProfile(made?.id, 'none'), () => 'switched');
await step('manager: search ACP', () => manager.searchACPConversations({ limit: 1 }), keys);
await step('manager: count ACP', () => manager.countACPConversations(), (count) => count > 1);
await step('manager: ACP by id', () => manager.getACPConversations([identity]), (all) => all.length);
await step('manager: all ACP', () => manager.getAllACPConversations(), (all) => all.length > 1);
await step('manager: one ACP', () => manager.getACPConversation(identity), tell);
const acpMade = await step('manager: create ACP', () => manager.createACPConversation(agent, { workingDir: work }), (one) => one.execution_status);
const acp = trace.watch(new sdk.ConversationManager({ host: url }).acp);
await step('acp: search', () => acp.searchConversations({ limit: 1 }), keys);
await step('acp: count', () => acp.countConversations(), (count) => count > 1);
await step('acp: by id', () => acp.getConversations([identity]), (all) => all.length);
await step('acp: all', () => acp.getAllConversations(), (all) => all.length > 1);
await step('acp: one', () => acp.getConversation(identity), tell);
await step('acp: create', () => acp.createConversation(agent, { workingDir: work }), (one) => one.execution_status);
await step('manager: delete', () => manager.deleteConversation(made?.id), () => 'deleted');
await conversations.deleteConversation(acpMade?.id).catch(() => {});

for (const each of [server, http, whole, settings, profiles, metas, agents, models, skills, plugins, vscode, places, mcp, files, remote, bash, conversations, manager]) {
  await step(`close ${each.constructor.name}`, () => each.close(), () => 'closed');
}
for (const name of ['ToolClient', 'SubAgentsClient', 'HooksClient', 'DesktopClient']) {
  await step(`close ${name}`, () => client(name).close(), () => 'closed');
}

// ------------------------------------------------------------------ routes that no method of the client asks for
// `words`: members in each server's own words.
const without = (value, words) => {
  if (Array.isArray(value)) return value.map((item) => without(item, words));
  if (value && typeof value === 'object') return Object.fromEntries(Object.entries(value).filter(([name]) => !words.includes(name)).map(([name, item]) => [name, without(item, words)]));
  return value;
};
async function raw(method, path, body, headers = {}) {
  // Not `fetch`, which sends no body with GET; some of these routes read one.
  const form = typeof body === 'string';
  const data = body === undefined ? '' : form ? body : JSON.stringify(body);
  const answer = await new Promise((resolve, reject) => {
    const asked = request(new URL(path, url), { method, headers: { ...(body && !form ? { 'Content-Type': 'application/json' } : {}), 'Content-Length': Buffer.byteLength(data), ...headers } }, (got) => {
      const pieces = [];
      got.on('data', (piece) => pieces.push(piece)).on('end', () => resolve({ status: got.statusCode, type: got.headers['content-type'] ?? null, body: Buffer.concat(pieces) })).on('error', reject);
    });
    asked.on('error', reject).end(data);
  });
  trace.requests.push(`${method} ${new URL(path, url).pathname} ${answer.status}`);
  const json = answer.type?.startsWith('application/json');
  // An archive has times in it: that there is one is all that is compared.
  const value = json ? JSON.parse(answer.body.toString()) : !answer.body.length ? null : /zip|octet-stream/.test(answer.type) && answer.body.length > 100 ? BYTES : answer.body.toString();
  if (answer.status >= 400) throw Object.assign(new Error(String(answer.status)), { status: answer.status, response: value });
  return { http: [answer.status, json ? 'json' : answer.type], value };
}
const same = (method, path, body, headers, words = []) => step(trace.text(`${method} ${decodeURIComponent(path)}`), () => raw(method, path, body, headers), (answer) => without(answer, words));
const at = (path) => `path=${encodeURIComponent(path)}`;
writeFileSync(join(work, 'index.html'), '<p>hello</p>');
const head = execFileSync('git', ['-C', repository, 'rev-parse', 'HEAD']).toString().trim();
const parentOfAll = (await conversations.createConversation({ agent, workspace: place })).id;
await turn(parentOfAll, '!text hello');
const base = `/api/conversations/${parentOfAll}`;
await same('GET', '/api/tools/catalog', undefined, {}, ['description']);
for (const path of ['/api/skills/catalog', '/api/canvas-extensions/installed', `${base}/runtime`]) await same('GET', path);
await same('POST', `${base}/runtime/reprovision`);
await same('GET', `${base}/events`, ['none']);
await same('GET', `${base}/workspace`);
await same('GET', `${base}/workspace/repository/kept.txt`);
await same('POST', `${base}/children`, { task: '!text hello', isolation: 'shared' });
await same('POST', '/api/acp/models', { agent_settings: { agent_kind: 'acp', acp_server: 'custom', acp_command: command } });
const form = (name) => `--B\r\nContent-Disposition: form-data; name="file"; filename="${name}"\r\n\r\nhello\r\n--B--\r\n`;
const FORM = { 'Content-Type': 'multipart/form-data; boundary=B' };
for (const root of ['/api', base]) {
  await same('POST', `${root}/bash/execute_bash_command`, { command: 'echo hello', cwd: work });
  const started = await same('POST', `${root}/bash/start_bash_command`, { command: 'sleep 60', cwd: work });
  await same('GET', `${root}/bash/bash_events/search`, undefined, {}, ['stderr']);
  await same('GET', `${root}/bash/bash_events/`, [started?.value?.id, 'none']);
  await same('GET', `${root}/bash/bash_events/${started?.value?.id}`);
  await same('POST', `${root}/bash/bash_commands/${started?.value?.id}/stop`);
  await pause(500);
  await same('DELETE', `${root}/bash/bash_events`);
  await same('POST', `${root}/file/create_directory?${at(join(work, 'made'))}`);
  await same('POST', `${root}/file/upload?${at(join(work, 'made', 'f'))}`, form('f'), FORM);
  await same('GET', `${root}/file/download?${at(join(work, 'made', 'f'))}`);
  await same('GET', `${root}/file/archive?${at(repository)}`);
  await same('GET', `${root}/file/archive?${at(repository)}&format=tar.gz`);
  await same('GET', `${root}/file/download-trajectory/${parentOfAll}`);
  await same('GET', `${root}/git/changes?${at(repository)}`);
  await same('GET', `${root}/git/commits?${at(repository)}`);
  await same('GET', `${root}/git/commits/${head}/changes?${at(repository)}`);
  await same('GET', `${root}/git/diff?${at(join(repository, 'kept.txt'))}`);
  await same('GET', `${root}/vscode/status`);
}
const connections = '/api/llm/provider-connections';
const connection = await same('POST', connections, { display_name: 'C', api_key: 'sk-of-a-connection', provider: 'openai' });
await same('GET', connections);
const connected = connection?.value?.connection?.id ?? connection?.value?.id ?? connection?.value?.connection_id;
await same('PATCH', `${connections}/${connected}`, { display_name: 'D' });
await same('DELETE', `${connections}/${connected}`);

// What the client's methods give nothing of.
await same('PUT', '/api/settings/secrets', { name: 'RAW', value: 'raw-value' });
await same('POST', `${base}/switch_acp_model`, { model: 'small' });
await same('DELETE', '/api/auth/workspace-session');
await same('DELETE', base);

const { methods, stale } = publicMethods(packageDirectory);
// To a pipe, `console.log` writes what fits at once, and the exit drops the rest.
writeFileSync(1, JSON.stringify({
  steps: trace.steps,
  uncovered: methods.filter((name) => !trace.called.has(name)),
  covered: methods.filter((name) => trace.called.has(name)).length,
  stale,
}, null, 1));
process.exit(0);
