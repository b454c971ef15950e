// The official TypeScript client, told of changed lists (see client.mjs for what `asked` is).
//
// Usage: node listener.mjs < asked.json, where asked is {release: "v1" | "v2", mode?, url, token}.
// Prints one JSON document per line: {version} once it is connected, {status} of each answer to a GET request,
// {kind, names} of each list that it fetched because it was told of a change, {problem} of whatever went wrong.
// Goes on until it is ended.

import { text } from 'node:stream/consumers';

const SDK = '@modelcontextprotocol/sdk/client';
const V2 = '@modelcontextprotocol/client';
const MODULES = { v1: [`${SDK}/index.js`, `${SDK}/streamableHttp.js`], v2: [V2, V2] };

const asked = JSON.parse(await text(process.stdin));
const [{ Client }, { StreamableHTTPClientTransport }] = await Promise.all(
  MODULES[asked.release].map((name) => import(name)),
);
const tell = (document) => console.log(JSON.stringify(document));

function hear(kind) {
  const onChanged = (problem, items) =>
    tell(problem ? { problem: String(problem) } : { kind, names: items.map((item) => item.name) });
  return { onChanged, debounceMs: 0 };
}

async function tellingFetch(url, options) {
  const response = await fetch(url, options);
  if (options?.method === 'GET') tell({ status: response.status });
  return response;
}

const client = new Client(
  { name: 'workflow-catalogue-tests', version: '1' },
  {
    listChanged: { tools: hear('tools'), prompts: hear('prompts'), resources: hear('resources') },
    ...(asked.mode ? { versionNegotiation: { mode: asked.mode } } : {}),
  },
);
client.onerror = (problem) => tell({ problem: String(problem) });
const transport = new StreamableHTTPClientTransport(new URL(asked.url), {
  requestInit: { headers: { Authorization: `Bearer ${asked.token}` } },
  fetch: tellingFetch,
});
await client.connect(transport);
tell({ version: client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion ?? null });
