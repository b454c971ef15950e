// The official TypeScript clients, which sign a user in through the browser.
//
// Usage: node sign_in.mjs RELEASE URL REDIRECT TOOL ARGUMENTS, where RELEASE is v1 or v2. Prints one JSON document a line:
//   {open: address to show to the user}, then reads a line, the parameters that the browser carried back;
//   {tools, result, refreshed, names}: what it lists and calls, and whether it lists again once its access token is gone;
//   then reads a line, lists once more and prints {tools} or {refused}.

import { createInterface } from 'node:readline';

const [release, url, redirect, tool, given] = process.argv.slice(2);
const SDK = '@modelcontextprotocol/sdk/client';
const V2 = '@modelcontextprotocol/client';
const MODULES = { v1: [`${SDK}/index.js`, `${SDK}/streamableHttp.js`], v2: [V2, V2] };
const [{ Client }, { StreamableHTTPClientTransport }] = await Promise.all(
  MODULES[release].map((name) => import(name)),
);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (document) => console.log(JSON.stringify(document));

const kept = {};
const authProvider = {
  redirectUrl: redirect,
  clientMetadata: {
    client_name: `TypeScript ${release}`,
    redirect_uris: [redirect],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
  },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => (kept.tokens = tokens),
  redirectToAuthorization: (address) => say({ open: String(address) }),
  saveCodeVerifier: (verifier) => (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
  saveDiscoveryState: (state) => (kept.discovery = state),
  discoveryState: () => kept.discovery,
};

async function connect() {
  const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider });
  const client = new Client({ name: 'workflow-catalogue-tests', version: '1' });
  return { client, transport, connected: client.connect(transport) };
}

const first = await connect();
await first.connected.then(
  () => Promise.reject(new Error('connected without a user')),
  (error) => {
    if (error?.constructor?.name !== 'UnauthorizedError') throw error;
  },
);
const carried = new URLSearchParams((await lines.next()).value);
await first.transport.finishAuth(release === 'v1' ? carried.get('code') : carried);

const { client, connected } = await connect();
await connected;
const names = async () => (await client.listTools()).tools.map(({ name }) => name);
const tools = await names();
const result = await client.callTool({ name: tool, arguments: JSON.parse(given) });
const before = kept.tokens;
kept.tokens = { ...before, access_token: 'wfo_expired' };
const again = await names();
const refreshed = kept.tokens.refresh_token !== before.refresh_token;
say({ tools, result, refreshed, again });

await lines.next();
try {
  say({ tools: await names() });
} catch (error) {
  say({ refused: String(error?.constructor?.name) });
}
process.exit(0);
