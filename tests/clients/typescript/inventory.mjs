// The public methods of the package's classes, read from its declarations.

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

// Classes that ask an agent server for nothing: they work in the client's own process, or with the provider's cloud.
const NOT_OF_THE_SERVER = new Set([
  'ACPConversationNamespaceOptions', 'Agent', 'AgentServerVersionError', 'AllowlistAnalyzer', 'AlwaysConfirm',
  'CallableSecretSource', 'CloudClient', 'CompositeAnalyzer', 'CompositeConfirm', 'Conversation', 'DeviceFlowError',
  'HttpError', 'LLM', 'LocalConversation', 'LocalEventsList', 'LocalState', 'LocalWorkspace', 'NeverConfirm', 'NoOpAnalyzer',
  'OpenHandsClient', 'OpenRouterLLM', 'PatternBasedAnalyzer', 'RiskBasedConfirm', 'SecretRegistry', 'SharedClient',
  'StaticSecretSource', 'StuckDetector', 'ToolBasedConfirm', 'Workspace',
]);

function* declarations(directory) {
  for (const entry of readdirSync(directory, { withFileTypes: true })) {
    const path = join(directory, entry.name);
    if (entry.isDirectory() && entry.name !== '__tests__') yield* declarations(path);
    else if (entry.name.endsWith('.d.ts')) yield path;
  }
}

export function publicMethods(packageDirectory) {
  const found = new Set();
  for (const path of declarations(join(packageDirectory, 'dist'))) {
    let name = null;
    for (const line of readFileSync(path, 'utf8').split('\n')) {
      const head = /^(?:export )?(?:default )?(?:declare )?(?:abstract )?class (\w+)/.exec(line.replace('export declare', 'export'));
      if (head) name = head[1];
      else if (line.startsWith('}')) name = null;
      const member = /^ {4}(?:get )?(\w+)(?:<[^(]*>)?\(/.exec(line);
      if (name && member && member[1] !== 'constructor' && !NOT_OF_THE_SERVER.has(name)) found.add(`${name}.${member[1]}`);
    }
  }
  return [...found].sort();
}
