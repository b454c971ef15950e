"""An MCP server over standard input and output that does what no server should: the first argument says what.

Not made with the SDK, which keeps servers from most of it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOREVER = 3600


def say(message: Any) -> None:
    print(json.dumps(message), flush=True)


def serve(on_list: Callable[[Any], None] = lambda message: None) -> None:
    """As the handshake versions have it."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        if message["method"] == "initialize":
            answer: Any = {
                "result": {
                    "protocolVersion": message["params"]["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "hostile", "version": "1"},
                }
            }
        elif message["method"] == "tools/list":
            on_list(message)
            answer = {"result": {"tools": [{"name": "good", "inputSchema": {"type": "object"}}]}}
        else:
            answer = {"error": {"code": -32601, "message": "Method not found"}}
        say({"jsonrpc": "2.0", "id": message["id"]} | answer)


def flood_errors(_: Any) -> None:
    sys.stderr.write(("x" * 200 + "\n") * 20_000)
    sys.stderr.flush()


def print_garbage(_: Any) -> None:
    for piece in ("Listening!", "{", "[" * 10_000, "\x00\x1b[2J", '{"jsonrpc": "2.0"}', "7", "null"):
        print(piece, flush=True)


def flood_progress(_: Any) -> None:
    params = {"progressToken": 1, "progress": 1}
    told = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}) + "\n"
    for _ in range(200):
        sys.stdout.write(told * 500)
    sys.stdout.flush()


def one_long_line(_: Any) -> None:
    for _ in range(500):
        sys.stdout.write("x" * 100_000)
    sys.stdout.write("\n")
    sys.stdout.flush()


def list_deeply(message: Any) -> None:
    nested = "[" * 10_000 + "]" * 10_000
    print(f'{{"jsonrpc": "2.0", "id": {message["id"]}, "result": {{"tools": {nested}}}}}', flush=True)


def leave(message: Any) -> None:
    sys.stderr.write("I have had enough.\n")
    sys.stderr.flush()
    sys.exit(3)


def have_children() -> None:
    for _ in range(3):
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"])


def note_pid(folder: Path) -> None:
    (folder / str(os.getpid())).touch()


def exit_at_once() -> None:
    sys.stderr.write("No license found.\n")
    sys.exit(7)


def stay() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve()
    time.sleep(FOREVER)


def serve_as_a_parent() -> None:
    have_children()
    serve()


DEEDS: dict[str, Callable[[], None]] = {
    "exits at once": exit_at_once,
    "says nothing": lambda: time.sleep(FOREVER),
    "ignores SIGTERM and the end of its input": stay,
    "forks children": serve_as_a_parent,
    "lists in lists": lambda: serve(list_deeply),
    "leaves in the middle": lambda: serve(leave),
    "floods stderr": lambda: serve(flood_errors),
    "prints garbage": lambda: serve(print_garbage),
    "floods progress": lambda: serve(flood_progress),
    "prints 50 MB without an end": lambda: serve(one_long_line),
}

if __name__ == "__main__":
    note_pid(Path(sys.argv[2]))
    DEEDS[sys.argv[1]]()
