// An authorization server and OpenID provider: the certified `oidc-provider`, as companies run one.
//
// Usage: node provider.mjs FILE, where FILE holds {issuer, jwks, clients, accounts} as JSON. `accounts` are the
// claims of people by the name that they log in with, read each time; any password will do. Access tokens of the client
// `opaque-agent` are such that only the server can read. All carry the account's claims.

import { readFileSync } from 'node:fs';
import Provider from 'oidc-provider';

const read = () => JSON.parse(readFileSync(process.argv[2], 'utf8'));
const { issuer, jwks, clients } = read();
const account = (id) => read().accounts[id];
const SCOPES = 'workflows:read workflows:run catalogue:read catalogue:admin tools.use';

const provider = new Provider(issuer, {
  clients,
  jwks,
  cookies: { keys: ['a key of the tests'] },
  claims: {
    openid: ['sub'],
    profile: ['name', 'preferred_username', 'groups'],
    email: ['email', 'email_verified'],
  },
  conformIdTokenClaims: false,
  scopes: ['openid', ...SCOPES.split(' ')],
  findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id, ...account(id) }) }),
  extraTokenClaims: (ctx, token) => account(token.accountId),
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: true },
    introspection: { enabled: true, allowedPolicy: () => true },
    revocation: { enabled: true, allowedPolicy: () => true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (ctx, resource, client) => ({
        scope: SCOPES,
        audience: resource,
        accessTokenTTL: 600,
        accessTokenFormat: client.clientId === 'opaque-agent' ? 'opaque' : 'jwt',
        jwt: { sign: { alg: jwks.keys[0].alg } },
      }),
    },
  },
});
// Browsers ask for it by themselves, and would log that there is none.
provider.use(async (ctx, next) => {
  if (ctx.path === '/favicon.ico') ctx.status = 204;
  else await next();
});
provider.on('server_error', (ctx, problem) => console.error(problem));
provider.listen(new URL(issuer).port, '127.0.0.1');
