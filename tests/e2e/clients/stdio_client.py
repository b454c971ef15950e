"""The official Python package before version 2 over stdio, with the time limit that OpenAI Agents sets.

Usage: python stdio_client.py < asked.json, where asked is {server, environment, calls: [[tool, arguments]]}
and `server` the command. Prints one JSON document: of each call the text, and the texts of the calls that a
handle proposed. An error that the client raises ends the program.
"""

import asyncio
import json
import sys
from datetime import timedelta

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

LIMIT = timedelta(seconds=5)


async def main(asked):
    command, *arguments = asked["server"]
    server = StdioServerParameters(command=command, args=arguments, env=asked["environment"])
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        # The limit is that of calls: a machine under load may need longer to start the server.
        await session.initialize()
        return {"calls": [await call(session, name, given) for name, given in asked["calls"]]}


async def call(session, name, given):
    result = await session.call_tool(name, given, read_timeout_seconds=LIMIT)
    told = {"text": result.content[0].text, "then": []}
    while step := (result.structuredContent or {}).get("next"):
        result = await session.call_tool(step["tool"], step["arguments"], read_timeout_seconds=LIMIT)
        told["then"].append(result.content[0].text)
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.load(sys.stdin)))))
