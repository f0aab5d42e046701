// A certified authorization server (npm's oidc-provider) on loopback: `node server.mjs DIRECTORY OPTIONS`.
//
// DIRECTORY is where the lock file was installed. OPTIONS are JSON: `path` (of the issuer, "" or "/tenant"),
// `lifetime` (seconds of an access token), `opaque` (tokens that have to be introspected), `methods` (how clients
// may authenticate; all by default), `secret` (of the client "resource-server", which may introspect).
//
// A line of JSON on standard output for each thing that happens, the first one names the issuer. Lines on standard
// input: `down` closes the port and every connection, `up` opens the same port again, if it is closed; what was given out stays.
// The end of the input ends the process.

import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const [directory, given] = process.argv.slice(2);
const options = { path: '', lifetime: 3600, opaque: false, methods: null, ...JSON.parse(given) };
const installed = createRequire(`${directory}/package.json`).resolve('oidc-provider');
const { Provider } = await import(pathToFileURL(installed).href);

const tell = (event, fields = {}) => process.stdout.write(`${JSON.stringify({ event, ...fields })}\n`);

let answer;
const server = createServer((request, response) => answer(request, response));
const listen = (port) => new Promise((done) => server.listen(port, '127.0.0.1', done));
await listen(0);
const { port } = server.address();
const issuer = `http://127.0.0.1:${port}${options.path}`;

const key = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' });
const provider = new Provider(issuer, {
  jwks: { keys: [{ ...key, use: 'sig', alg: 'RS256', kid: 'one' }] },
  cookies: { keys: [randomBytes(16).toString('hex')] },
  scopes: ['openid', 'offline_access', 'tools', 'other'],
  clients: [{
    client_id: 'resource-server', client_secret: options.secret, redirect_uris: [], response_types: [], grant_types: [],
    token_endpoint_auth_method: 'client_secret_basic',
  }],
  ...(options.methods && { clientAuthMethods: options.methods }),
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  pkce: { required: () => true },
  rotateRefreshToken: () => true,
  ttl: { AccessToken: options.lifetime, RefreshToken: 3600, Grant: 3600, Session: 3600, Interaction: 600, IdToken: 600 },
  features: {
    devInteractions: { enabled: true },
    registration: { enabled: true },
    revocation: { enabled: true, allowedPolicy: (_, client, token) => client.clientId === token.clientId },
    introspection: { enabled: true, allowedPolicy: (_, client) => client.clientId === 'resource-server' },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_, resource) => ({
        audience: resource,
        scope: 'tools other',
        accessTokenTTL: options.lifetime,
        accessTokenFormat: options.opaque ? 'opaque' : 'jwt',
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
});

provider.on('registration_create.success', (_, client) => tell('registered', {
  client: client.clientId, method: client.tokenEndpointAuthMethod ?? client.clientAuthMethod,
}));
provider.on('registration_create.error', (_, error) => tell('registration refused', { reason: error.error_description }));
provider.on('authorization.error', (_, error) => tell('authorization refused', { reason: error.error_description }));
provider.on('grant.success', (context) => tell('granted', {
  type: context.oidc.params.grant_type, resource: context.oidc.params.resource, scope: context.body.scope,
  access: context.body.access_token, refresh: context.body.refresh_token,
}));
provider.on('grant.error', (context, error) => tell('grant refused', {
  type: context.oidc?.params?.grant_type, error: error.error, reason: error.error_detail ?? error.error_description,
}));
provider.on('refresh_token.consumed', () => tell('refresh token used'));
provider.on('grant.revoked', () => tell('revoked'));
provider.on('server_error', (_, error) => tell('failed', { reason: String(error.stack) }));

const callback = provider.callback();
answer = (request, response) => {
  if (!request.url.startsWith(`${options.path}/`)) {
    response.writeHead(404).end();
    return;
  }
  request.originalUrl = request.url;
  request.url = request.url.slice(options.path.length);
  callback(request, response);
};
tell('ready', { issuer });

for await (const line of createInterface({ input: process.stdin })) {
  if (line === 'down') {
    server.closeAllConnections();
    await new Promise((done) => { server.close(done); server.closeAllConnections(); });
  } else if (line === 'up') {
    if (!server.listening) await listen(port);
  }
  tell(line);
}
process.exit(0);
