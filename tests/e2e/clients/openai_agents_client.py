"""openai-agents in strict mode, without a model: what one would answer is made up from each tool's schema.

Usage: python openai_agents_client.py < asked.json, where asked is {url, token, calls: [[tool, arguments]]}.
Its time limits are its own. Prints one JSON document: the tools' names, which of them are strict, and of
each call the arguments that were sent, the text, and the texts of the calls that a handle proposed.
"""

import asyncio
import json
import re
import sys

from agents.mcp import MCPServerStreamableHttp, MCPUtil
from agents.tool_context import ToolContext

EMPTY = {"string": "", "integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}


async def main(asked):
    parameters = {"url": asked["url"], "headers": {"Authorization": f"Bearer {asked['token']}"}}
    async with MCPServerStreamableHttp(params=parameters) as server:
        listed = await server.list_tools()
        tools = {tool.name: MCPUtil.to_function_tool(tool, server, True) for tool in listed}
        return {
            "tools": list(tools),
            "strict": [name for name, tool in tools.items() if tool.strict_json_schema],
            "calls": [await call(tools, name, given) for name, given in asked["calls"]],
        }


async def call(tools, name, given):
    sent = complete(tools[name].params_json_schema, given) if tools[name].strict_json_schema else given
    text = await invoke(tools[name], sent)
    told = {"sent": sent, "text": text, "then": []}
    while step := next_step(text):
        text = await invoke(tools[step["tool"]], step["arguments"])
        told["then"].append(text)
    return told


def next_step(text):
    """The call that a handle proposes to a model, in words or in the document about the execution."""
    if text.startswith("{"):
        return json.loads(text).get("next")
    proposed = re.search(r"Call (\w+) with (\{.*?\})", text)
    return proposed and {"tool": proposed[1], "arguments": json.loads(proposed[2])}


async def invoke(tool, sent):
    """The text that a model reads. An error that the client raises ends the program."""
    arguments = json.dumps(sent)
    context = ToolContext(context=None, tool_name=tool.name, tool_call_id="1", tool_arguments=arguments)
    told = await tool.on_invoke_tool(context, arguments)
    return told["text"] if isinstance(told, dict) else str(told)


def complete(schema, given):
    """With a value for every property, as strict mode wants it."""
    properties = schema.get("properties", {})
    return {name: empty(part) for name, part in properties.items() if name not in given} | given


def empty(schema):
    """What says the least of what the schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("not") == {}:
        return None
    if "anyOf" in schema:
        return None if {"type": "null"} in schema["anyOf"] else empty(schema["anyOf"][0])
    kinds = schema.get("type", "string")
    if kinds == "object":
        return complete(schema, {})
    if kinds in ("integer", "number"):
        return schema.get("minimum", 0)
    return None if "null" in kinds else EMPTY[kinds]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.load(sys.stdin)))))
