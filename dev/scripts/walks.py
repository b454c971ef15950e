"""Counts the functions of the product on four walks: `python dev/scripts/walks.py` prints them as JSON.

Each walk goes through the doors of the checkout in the current folder, in one process with SQLite and the
example engine, and the shortest of five counts.
"""

import asyncio
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx2

OTHERS = ("dev", "tests", "examples", "deploy")
"""Folders of the checkout that are not the product."""
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Orders", "version": "1"},
    "servers": [{"url": "https://api.example.com/v1"}],
    "paths": {
        "/orders/{id}": {
            "get": {
                "operationId": "getOrder",
                "summary": "Returns an order.",
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
                "responses": {"200": {"description": "The order."}},
            }
        }
    },
}


class Recorder:
    """The functions of the product in the order of their first calls, in all threads."""

    def __init__(self, root: Path) -> None:
        self.root = f"{root}/"
        self.others = (f"{root}/.", *(f"{root / other}/" for other in OTHERS))
        self.recording = False
        self.called: dict[tuple[str, str, int], None] = {}
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if not self.recording or event != "call" or code.co_name[0] == "<":
            return
        if code.co_filename.startswith(self.root) and not code.co_filename.startswith(self.others):
            self.called.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno))

    @contextmanager
    def walk(self) -> Iterator[None]:
        self.called.clear()
        self.recording = True
        yield
        self.recording = False

    def figures(self) -> dict[str, int]:
        """`returns` counts how often the walk enters a file anew that it has left."""
        files = [file for file, *_ in self.called]
        entered = [file for before, file in zip(["", *files], files, strict=False) if before != file]
        return {
            "functions": len(files),
            "files": len(set(files)),
            "returns": len(entered) - len(set(entered)),
        }


class Doors:
    """The product's doors, for a client with a token of an owner."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def ask(self, method: str, **parameters: Any) -> str:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**parameters, "_meta": META}}
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": method,
            **({"Mcp-Name": parameters["name"]} if parameters else {}),
        }
        answer = await self.client.post("/mcp", json=message, headers=headers)
        assert answer.status_code == 200 and '"error"' not in answer.text, answer.text
        return answer.text

    async def post(self, address: str, **body: Any) -> None:
        answer = await self.client.post(address, json=body)
        assert answer.status_code == 200, answer.text

    async def call(self) -> None:
        answer = await self.ask("tools/call", name="countdown", arguments={"seconds": 0.2})
        assert "finished_at" in answer, answer

    async def list_tools(self) -> None:
        await asyncio.sleep(1.1)  # A process looks for changes once a second
        assert "countdown" in await self.ask("tools/list")

    async def discover(self) -> None:
        await asyncio.to_thread(run, "refresh_sources")
        await self.list_tools()

    async def enable(self) -> None:
        await self.post("/api/workflows/countdown/enable/")
        await self.list_tools()

    async def import_document(self) -> None:
        await self.post("/api/openapi-imports/", document=json.dumps(DOCUMENT))


async def go(recorder: Recorder, token: str) -> dict[str, dict[str, int]]:
    from catalogue.models import Workflow
    from config.asgi import build_application

    application = build_application()
    client = httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=application),
        base_url="http://localhost",
        headers={"Authorization": f"Bearer {token}"},
        timeout=60,
    )
    doors = Doors(client)
    walks: dict[str, tuple[Callable[[], object], Callable[[], Awaitable[None]]]] = {
        "tools/call": (lambda: None, doors.call),
        "discovery to tools/list": (Workflow.objects.filter(name="countdown").delete, doors.discover),
        "enable to tools/list": (
            lambda: run("disable_workflows", "countdown", "--source", "engine"),
            doors.enable,
        ),
        "import of an operation": (
            Workflow.objects.exclude(source__name="engine").delete,
            doors.import_document,
        ),
    }
    found = {}
    async with application.router.lifespan_context(application), client:
        for name, (prepare, walk) in walks.items():
            counted = []
            for _ in range(5):  # The first ones fill caches; a later one may meet a timer
                await asyncio.to_thread(prepare)
                with recorder.walk():
                    await walk()
                counted.append(recorder.figures())
            found[name] = min(counted, key=lambda figures: figures["functions"])
    return found


def run(command: str, *options: str) -> None:
    from django.core.management import call_command

    call_command(command, *options, stdout=io.StringIO())


def main() -> None:
    sys.path.insert(0, os.getcwd())
    recorder = Recorder(Path.cwd())
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"CATALOGUE_DATA_DIR": folder, "LOG_LEVEL": "ERROR"}
        os.environ |= {"DJANGO_SETTINGS_MODULE": "config.settings", "DATABASE_URL": ""}
        import django

        django.setup()
        from identity.tokens import create_token
        from tests.processes import running_example_engine

        run("migrate")
        with running_example_engine(Path(folder)) as engine:
            config = json.dumps({"base_url": engine.base_url, "min_poll_seconds": 1})
            secret = f"api_key={engine.api_key}"
            run("add_source", "engine", "simplified", "--expose-new", "--config", config, "--secret", secret)
            run("refresh_sources")
            _, token = create_token(name="walks", scopes=["catalogue:admin"])
            print(json.dumps(asyncio.run(go(recorder, token))))


if __name__ == "__main__":
    main()
