"""What a test leaves open fails it or its module (`tests/leaks.py`, and pytest of what Python warns of)."""

import asyncio
import socket

import pytest

from tests.connectors.scripted import ScriptedEngine, replies


@pytest.mark.parametrize("steps", range(6))
async def test_an_engine_leaves_nothing_though_a_client_comes_as_it_ends(steps):
    """Its connection is ready only so many steps of the loop later."""
    async with ScriptedEngine(replies(200)) as engine:
        client = socket.create_connection((engine.host, engine.port))
        for _ in range(steps):
            await asyncio.sleep(0)
    client.close()
