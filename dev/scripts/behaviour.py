"""Record what a move of code must not change: `python -m dev.scripts.behaviour FOLDER`.

Run it before and after, then compare the folders with `diff -r`. They contain the OpenAPI document, the help
of every command, and tools/list of a fixed catalogue for both eras of the protocol.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2

from dev.benchmarks._processes import McpServer, catalogue_server, own_database
from dev.benchmarks._workflows import fill_catalogue

WORKFLOWS = 300
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
ROOMS = ("config", "audit", "access", "catalogue", "executions", "identity", "mcp_bridge", "orchestration")


def write_helps(folder: Path) -> None:
    from django.core.management import get_commands

    folder.mkdir()
    own = sorted(name for name, app in get_commands().items() if str(app) in ROOMS)
    processes = {
        name: subprocess.Popen(
            [sys.executable, "manage.py", name, "--help"],
            stdout=subprocess.PIPE,
            env=os.environ | {"COLUMNS": "100"},
        )
        for name in own
    }
    for name, process in processes.items():
        (folder / f"{name}.txt").write_bytes(process.communicate()[0])


def write_openapi(file: Path) -> None:
    from django.core.management import call_command

    call_command("spectacular", file=str(file))


def fill() -> None:
    from django.core.management import call_command

    fill_catalogue(WORKFLOWS)
    call_command("add_tools", "examples/tools.yaml", source="tools", verbosity=0)
    call_command(
        "import_openapi", "tests/api/openapi.yaml", base_url="http://127.0.0.1:1", expose=True, verbosity=0
    )


def every_tool(server: McpServer, headers: dict[str, str], **more: Any) -> list[Any]:
    tools: list[Any] = []
    params: dict[str, Any] = dict(more)
    while True:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
        response = httpx2.post(
            server.url,
            json=body,
            headers={
                "authorization": f"Bearer {server.token}",
                "accept": "application/json, text/event-stream",
                **headers,
            },
        )
        response.raise_for_status()
        text = response.text
        if not text.startswith("{"):
            text = next(line[6:] for line in text.splitlines() if line.startswith("data: {"))
        result = json.loads(text)["result"]
        tools += result["tools"]
        if not (cursor := result.get("nextCursor")):
            return tools
        params["cursor"] = cursor


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ |= {"DJANGO_SETTINGS_MODULE": "config.settings", "CATALOGUE_DATA_DIR": str(data)}
        os.environ["CATALOGUE_HTTP_TOOL_HOSTS"] = "127.0.0.1"
        stack.enter_context(own_database())
        write_openapi(folder / "openapi.yaml")
        write_helps(folder / "help")
        fill()
        server = stack.enter_context(catalogue_server(data))
        modern = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
        lists = {
            "2026-07-28": every_tool(server, modern, _meta=META),
            "2025-06-18": every_tool(server, {"mcp-protocol-version": "2025-06-18"}),
        }
        for version, tools in lists.items():
            (folder / f"tools-{version}.json").write_text(json.dumps(tools, indent=1))


if __name__ == "__main__":
    main()
