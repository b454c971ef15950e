// The official TypeScript client, in its release for 2026-07-28 (v2) or in the one before (v1).
//
// Usage: node client.mjs < asked.json, where asked is
//   {release: "v1" | "v2", mode?, url, token} or {release, mode?, command, args, env}, and
//   calls: [[tool, arguments], ...], resources: [uri, ...], progress: true where each call asks to hear of it.
// `mode` is v2's version negotiation: "legacy", "auto" or {pin: revision}.
// Prints one JSON document: the protocol's version, all tools, each call's result and each resource's contents.

import { text } from 'node:stream/consumers';

const SDK = '@modelcontextprotocol/sdk/client';
const V2 = '@modelcontextprotocol/client';
const MODULES = {
  v1: [`${SDK}/index.js`, `${SDK}/streamableHttp.js`, `${SDK}/stdio.js`],
  v2: [V2, V2, `${V2}/stdio`],
};

const asked = JSON.parse(await text(process.stdin));
const [{ Client }, { StreamableHTTPClientTransport }, { StdioClientTransport }] = await Promise.all(
  MODULES[asked.release].map((name) => import(name)),
);

function makeTransport({ url, token, command, args, env }) {
  if (command) return new StdioClientTransport({ command, args, env, stderr: 'inherit' });
  return new StreamableHTTPClientTransport(new URL(url), {
    requestInit: { headers: { Authorization: `Bearer ${token}` } },
  });
}

async function listTools(client) {
  const tools = [];
  let cursor;
  do {
    const page = await client.listTools(cursor === undefined ? undefined : { cursor });
    tools.push(...page.tools);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return tools;
}

async function inTurn(items, ask) {
  const answers = [];
  for (const item of items ?? []) answers.push(await ask(item));
  return answers;
}

async function call([name, given]) {
  const options = asked.progress ? { onprogress: () => undefined } : {};
  return client.callTool({ name, arguments: given }, ...(asked.release === 'v1' ? [undefined] : []), options);
}

const client = new Client(
  { name: 'workflow-catalogue-tests', version: '1' },
  // On a busy machine the process that it asks first takes longer than its own 60 s to start, which would
  // make the server one of the handshake era.
  asked.mode ? { versionNegotiation: { mode: asked.mode, probe: { timeoutMs: 100_000 } } } : {},
);
const transport = makeTransport(asked);
await client.connect(transport);
const tools = await listTools(client);
const told = {
  version: client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion ?? null,
  server: client.getServerVersion(),
  tools,
  calls: await inTurn(asked.calls, call),
  resources: await inTurn(asked.resources, (uri) => client.readResource({ uri })),
};
await client.close();
console.log(JSON.stringify(told));
