"""mcpadapt, which smolagents and CrewAI take tools with, and what they make of a tool's schema.

Usage: python mcpadapt_client.py < asked.json, where asked is {url, token, calls: [[tool, arguments], ...]}.
Prints one JSON document: the tools' names, and of each call the text and whether it is an error.
"""

import json
import sys

import jsonref
from mcpadapt.core import MCPAdapt, ToolAdapter


class Adapter(ToolAdapter):
    """Reads a schema as the adapter for smolagents does, which itself needs smolagents installed."""

    def adapt(self, func, mcp_tool):
        schema = jsonref.replace_refs(mcp_tool.inputSchema)
        for part in schema["properties"].values():
            part["description"] = part.get("description", "see tool description")
            part["type"] = part.get("type", "string")
        return mcp_tool.name, func


def main(asked):
    headers = {"Authorization": f"Bearer {asked['token']}"}
    server = {"url": asked["url"], "transport": "streamable-http", "headers": headers}
    with MCPAdapt(server, Adapter()) as adapted:
        tools = dict(adapted)
        return {"tools": list(tools), "calls": [call(tools[name], given) for name, given in asked["calls"]]}


def call(tool, given):
    result = tool(given)
    return {"text": result.content[0].text, "is_error": result.isError}


if __name__ == "__main__":
    print(json.dumps(main(json.load(sys.stdin))))
