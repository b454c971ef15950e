"""A client of 2025: the official package before version 2, which this file is run with.

Usage: python client_2025.py URL TOKEN < calls.json, where the calls are [[tool, arguments], ...].
Prints one JSON document: the tools' names and each call's text, isError and progress notifications.
"""

import asyncio
import json
import sys

import httpx
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def main(url, token, calls):
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=30, trust_env=False) as http,
        streamable_http_client(url, http_client=http) as (reading, writing, _),
        ClientSession(reading, writing) as session,
    ):
        greeting = await session.initialize()
        listed = await session.list_tools()
        return {
            "protocol": greeting.protocolVersion,
            "tools": [tool.name for tool in listed.tools],
            "calls": [await call(session, name, arguments) for name, arguments in calls],
        }


async def call(session, name, arguments):
    progress = []

    async def note(value, total, message):
        progress.append([value, total, message])

    result = await session.call_tool(name, arguments, progress_callback=note)
    text = "\n".join(block.text for block in result.content)
    return {"text": text, "is_error": result.isError, "progress": progress}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:3], json.load(sys.stdin)))))
