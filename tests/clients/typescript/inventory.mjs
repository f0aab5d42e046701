// The public methods of the package's classes, read from its declarations.

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

// Classes whose methods are not called, and why.
const IN_PROCESS = 'works in the process of the client, and asks no server';
const ANALYZES = 'judges actions in the process of the client';
const CLOUD = "asks the provider's cloud";
const MODEL = "asks a model's provider";
const ERROR = 'an error that others throw';
const NOT_CALLED = {
  Agent: IN_PROCESS,
  AgentServerVersionError: ERROR,
  AllowlistAnalyzer: ANALYZES,
  AlwaysConfirm: ANALYZES,
  CallableSecretSource: IN_PROCESS,
  CloudClient: CLOUD,
  CompositeAnalyzer: ANALYZES,
  CompositeConfirm: ANALYZES,
  Conversation: 'is RemoteConversation, whose methods are called, by another name',
  DeviceFlowError: ERROR,
  HttpError: ERROR,
  LLM: MODEL,
  LocalConversation: IN_PROCESS,
  LocalWorkspace: IN_PROCESS,
  NeverConfirm: ANALYZES,
  NoOpAnalyzer: ANALYZES,
  OpenHandsClient: 'is abstract; its methods are called of AgentServerClient',
  OpenRouterLLM: MODEL,
  PatternBasedAnalyzer: ANALYZES,
  RiskBasedConfirm: ANALYZES,
  SecretRegistry: IN_PROCESS,
  SharedClient: CLOUD,
  StaticSecretSource: IN_PROCESS,
  StuckDetector: IN_PROCESS,
  ToolBasedConfirm: ANALYZES,
  Workspace: 'is RemoteWorkspace, whose methods are called, by another name',
};

function* declarations(directory) {
  for (const entry of readdirSync(directory, { withFileTypes: true })) {
    const path = join(directory, entry.name);
    if (entry.isDirectory() && entry.name !== '__tests__') yield* declarations(path);
    else if (entry.name.endsWith('.d.ts')) yield path;
  }
}

// `methods`: those to be called; `stale`: classes with a reason that the package does not have.
export function publicMethods(packageDirectory) {
  const found = new Set();
  const stale = new Set(Object.keys(NOT_CALLED));
  for (const path of declarations(join(packageDirectory, 'dist'))) {
    let name = null;
    for (const line of readFileSync(path, 'utf8').split('\n')) {
      const head = /^(?:export )?(?:default )?(?:declare )?(?:abstract )?class (\w+)/.exec(line.replace('export declare', 'export'));
      if (head) {
        name = head[1];
        stale.delete(name);
      }
      else if (line.startsWith('}')) name = null;
      const member = /^ {4}(?:get )?(\w+)(?:<[^(]*>)?\(/.exec(line);
      if (name && member && member[1] !== 'constructor' && !(name in NOT_CALLED)) found.add(`${name}.${member[1]}`);
    }
  }
  return { methods: [...found].sort(), stale: [...stale] };
}
