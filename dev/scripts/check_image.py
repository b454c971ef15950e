"""Run the image as compose.yaml and the chart do, read-only and not as root, and a call through it.

    ENGINE=podman IMAGE=workflow-catalogue:latest python dev/scripts/check_image.py [option of `run` ...]

Web, worker, beat and the example engine are containers of their own on the host's network, with one folder of
data.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from contextlib import ExitStack
from pathlib import Path

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

ENGINE = os.environ.get("ENGINE", "docker")
IMAGE = os.environ.get("IMAGE", "workflow-catalogue:latest")
SECONDS = 180
USER = 10001
ENGINE_PORT, PORT = 18090, 18000
NAME = f"check-{uuid.uuid4().hex[:8]}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        data = Path(folder, "data")
        data.mkdir(mode=0o700)
        os.chown(data, USER, USER)
        run = ["run", "--rm", "--network=host", "--read-only", "--cap-drop=ALL"]
        run += ["--security-opt=no-new-privileges", "--tmpfs=/tmp", f"--volume={data}:/data"]
        run += [f"--env=PORT={PORT}", "--env=EXAMPLE_ENGINE_API_KEY=a-key-of-24-characters-ab", *sys.argv[1:]]

        def command(*words: str) -> str:
            return engine(*run, IMAGE, *words)

        def start(name: str, *words: str, entrypoint: str = "workflow-catalogue") -> None:
            engine(*run, "--detach", f"--name={NAME}-{name}", f"--entrypoint={entrypoint}", IMAGE, *words)
            stack.callback(stop, f"{NAME}-{name}")

        def inside(name: str, program: str) -> str:
            return engine("exec", f"{NAME}-{name}", "python", "-c", program)

        command("migrate", "--no-input", "--verbosity=0")
        where = ["--port", str(ENGINE_PORT), "--db", "/tmp/engine.sqlite3"]  # noqa: S108 - a tmpfs
        start("engine", *where, entrypoint="workflow-catalogue-example-engine")
        wait_for(f"http://127.0.0.1:{ENGINE_PORT}/healthz")
        config = json.dumps({"base_url": f"http://127.0.0.1:{ENGINE_PORT}"})
        secret = ["--secret-env", "api_key=EXAMPLE_ENGINE_API_KEY", "--expose-new"]
        command("add_source", "example-engine", "simplified", "--config", config, *secret)
        token = command("create_mcp_token", "check").strip()
        start("web", "serve", "--host", "0.0.0.0")  # noqa: S104 - as the image has it
        start("worker", "worker")
        start("beat", "beat")
        wait_for(f"http://127.0.0.1:{PORT}/admin/login/")
        uid = inside("web", "import os; print(os.getuid())").strip()
        written = inside(
            "web", "import os; print(os.access('/opt', os.W_OK), os.access('/etc', os.W_OK))"
        ).strip()
        assert (uid, written) == (str(USER), "False False"), (uid, written)
        asyncio.run(call(token))
        print(f"A call went through {IMAGE}: read-only, user {uid}, web, worker and beat.")


async def call(token: str) -> None:
    """The worker's listing is served, and a run is recorded."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{PORT}/mcp", http_client=http)
        async with Client(transport) as client:
            for _ in range(SECONDS):
                if "text_statistics" in {tool.name for tool in (await client.list_tools()).tools}:
                    break
                await asyncio.sleep(1)
            result = await client.call_tool("text_statistics", {"text": "Two words."})
    assert result.structured_content and result.structured_content["words"] == 2, result


def engine(*words: str) -> str:
    outcome = subprocess.run([ENGINE, *words], capture_output=True, text=True, check=False)
    if outcome.returncode:
        sys.exit(f"{ENGINE} {' '.join(words)}\n{outcome.stdout}{outcome.stderr}")
    return outcome.stdout


def stop(name: str) -> None:
    """Shows the container's last lines if it has ended unexpectedly."""
    logs = subprocess.run([ENGINE, "logs", "--tail", "20", name], capture_output=True, text=True, check=False)
    stopped = subprocess.run([ENGINE, "stop", "--time", "20", name], capture_output=True, check=False)
    if stopped.returncode:
        print(f"{name} was gone:\n{logs.stdout}{logs.stderr}", file=sys.stderr)


def wait_for(url: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not _answers(url):
        if time.monotonic() > deadline:
            sys.exit(f"{url} does not answer.")
        time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 - ours
            return bool(response.status < 400)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main()
