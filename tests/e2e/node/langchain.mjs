// LangChain's adapter for MCP, without a model.
//
// Usage: node langchain.mjs < asked.json, where asked is {url, token, calls: [[tool, arguments], ...]}.
// Prints one JSON document: the tools' names, and of each call the text and whether it is an error.

import { text } from 'node:stream/consumers';

import { MultiServerMCPClient } from '@langchain/mcp-adapters';

const { url, token, calls } = JSON.parse(await text(process.stdin));
const server = { transport: 'http', url, headers: { Authorization: `Bearer ${token}` } };
const client = new MultiServerMCPClient({ mcpServers: { catalogue: server } });

// What a model reads: a text, or a block with it that has become one.
function words(content) {
  if (Array.isArray(content)) return content.map((block) => block.text).join('\n');
  const block = content.startsWith('{') ? JSON.parse(content) : {};
  return block.type === 'text' ? block.text : content;
}

async function call(tool, args) {
  try {
    const told = await tool.invoke({ type: 'tool_call', id: '1', name: tool.name, args });
    return { text: words(told.content), is_error: told.status === 'error' };
  } catch (error) {
    return { text: String(error), is_error: true };
  }
}

const tools = await client.getTools();
const told = { tools: tools.map((tool) => tool.name), calls: [] };
for (const [name, given] of calls) {
  told.calls.push(await call(tools.find((tool) => tool.name === name), given));
}
await client.close();
console.log(JSON.stringify(told));
