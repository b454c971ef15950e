"""How the product's code is cut: `python scripts/figures.py [--calls] [--against REVISION]`.

The figures are those of the six rooms without their migrations. `--calls` also counts how many of our own
functions one tools/call and one POST /workflow run; it starts the product in a process of its own.
"""

import argparse
import ast
import io
import json
import os
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tokenize
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    "telemetry",
    "connectors",
    "audit",
    "catalogue",
    "executions",
    "orchestration",
    "mcp_bridge",
    "config",
)
SMALL = 5
"""Lines of a function."""
CALLS = ("calls of own functions in tools/call", "calls of own functions in POST /workflow")
"""As sys.setprofile sees them: a coroutine that continues after a wait counts again."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    name: str
    folder: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))


def read_modules(root: Path) -> list[Module]:
    modules = []
    for file in sorted(file for room in ROOMS for file in (root / room).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if "migrations" not in parts:
            name = ".".join(parts).removesuffix(".__init__")
            modules.append(Module(name, "/".join(parts[:-1]), file.read_text(encoding="utf-8")))
    return modules


# Lines


def code_lines(module: Module) -> int:
    """All except blank lines, comments, imports, docstrings and strings that document the name above."""
    kept: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in NO_CODE:
            kept.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.stmt) and _is_no_code(node):
            kept.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(kept)


NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def _is_no_code(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return isinstance(node.value.value, str)
    return isinstance(node, ast.Import | ast.ImportFrom)


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


# Imports


def imports_of(modules: list[Module]) -> dict[str, set[str]]:
    """The modules that each of them imports, also inside functions and only for types."""
    known = {module.name for module in modules}
    return {module.name: set(_imported(module, known)) - {module.name} for module in modules}


def _imported(module: Module, known: set[str]) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module in known | set(ROOMS):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def lonely(modules: list[Module], imports: dict[str, set[str]]) -> list[str]:
    """Modules with exactly one importer, which sits in the same folder."""
    importers: dict[str, list[str]] = defaultdict(list)
    for name, imported in imports.items():
        for other in imported:
            importers[other].append(name)
    folders = {module.name: module.folder for module in modules}
    return sorted(
        name
        for name, found in importers.items()
        if len(found) == 1 and folders[found[0]] == folders[name] and name.count(".")
    )


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module."""
    reached = {name: _reached_from(name, imports) for name in imports}
    components = {
        tuple(sorted(other for other in reached[name] if name in reached[other])) for name in imports
    }
    return sorted(list(component) for component in components if len(component) > 1)


def _reached_from(name: str, imports: dict[str, set[str]]) -> set[str]:
    reached, left = {name}, [name]
    while left:
        new = imports[left.pop()] - reached
        reached |= new
        left += new
    return reached


# Functions


def used_once(modules: list[Module]) -> list[tuple[str, int]]:
    """Functions with a unique name that is read at one place, with their lines."""
    uses: Counter[str] = Counter()
    defined: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name):
                uses[node.id] += 1
            elif isinstance(node, ast.Attribute):
                uses[node.attr] += 1
            elif isinstance(node, Function) and not node.name.startswith("__"):
                defined[node.name].append((f"{module.name}.{node.name}", length(node)))
    return sorted(places[0] for name, places in defined.items() if len(places) == 1 and uses[name] == 1)


def own_names(modules: list[Module]) -> int:
    names = Counter(
        function.name
        for module in modules
        for function in module.functions()
        if not function.name.startswith("__")
    )
    return sum(count == 1 for count in names.values())


def figures(root: Path) -> dict[str, str]:
    modules = read_modules(root)
    imports = imports_of(modules)
    lines = sum(module.lines for module in modules)
    lengths = sorted(length(function) for module in modules for function in module.functions())
    once = used_once(modules)
    return {
        "product modules": f"{len(modules):,}",
        "product lines": f"{lines:,}",
        "share of code lines": f"{sum(map(code_lines, modules)) / lines:.1%}",
        "modules with one importer, next door": f"{len(lonely(modules, imports)):,}",
        "functions with a name of their own": f"{own_names(modules):,}",
        "of these used once": f"{len(once):,}",
        f"of these with at most {SMALL} lines": f"{sum(lines <= SMALL for _, lines in once):,}",
        "circles of imports": f"{len(circles(imports)):,}",
        "function lines, median / p90 / max": f"{statistics.median(lengths):g} / "
        f"{lengths[len(lengths) * 9 // 10]} / {lengths[-1]}",
    }


# Calls: the product serves in this process, from the folder in which it was started


TOOL = {
    "name": "create_order",
    "description": "Orders something in the shop.",
    "input_schema": {
        "type": "object",
        "properties": {"item": {"type": "string"}, "amount": {"type": "integer", "minimum": 1}},
        "required": ["item", "amount"],
    },
}
ORDER = "order-17"
ARGUMENTS = {"item": "kettle", "amount": 2}
PROPOSAL = {"reason": "It is the tool that orders.", "tool": TOOL["name"], "arguments": ARGUMENTS}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
MCP_HEADERS = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tools/call",
    "mcp-name": str(TOOL["name"]),
}


class ModelAndShop(BaseHTTPRequestHandler):
    """A model server and an API, which answer at once."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["content-length"]))
        answer = _completion(asked) if self.path.endswith("/chat/completions") else {"order": ORDER}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _completion(asked: bytes) -> dict[str, Any]:
    text = json.dumps(PROPOSAL) if b'"response_format"' in asked else "Two kettles are ordered."
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 400, "completion_tokens": 40, "total_tokens": 440}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "instant", "usage": usage}
    return body | {"choices": [choice]}


class Profile:
    """Counts the calls of functions of the six rooms, in every thread that starts after it."""

    def __init__(self, root: Path) -> None:
        self._files = tuple(f"{root / room}{os.sep}" for room in ROOMS)
        self.calls: Counter[str] | None = None
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or self.calls is None or not code.co_filename.startswith(self._files):
            return
        # RESUME has 0 at a function's start only: all other events are coroutines and generators that go on.
        starts = not code.co_code[frame.f_lasti + 1] & 3 and not code.co_name.startswith("<")
        self.calls[f"{os.path.relpath(code.co_filename)}:{code.co_qualname}{'' if starts else RESUMED}"] += 1


RESUMED = " resumed"


@contextmanager
def serving(application: Any) -> Iterator[str]:
    """The base URL of an ASGI application, or of a handler of http.server, in a thread of this process."""
    if isinstance(application, type):
        plain = ThreadingHTTPServer(("127.0.0.1", 0), application)
        threading.Thread(target=plain.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{plain.server_port}"
        plain.shutdown()
        return
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()


def count_calls() -> dict[str, Counter[str]]:
    """For one request each in a warm process, only by commands and HTTP, which other revisions have too."""
    root = Path.cwd()
    sys.path.insert(0, str(root))
    profile = Profile(root)
    with tempfile.TemporaryDirectory() as folder, serving(ModelAndShop) as upstream:
        os.environ |= {
            "CATALOGUE_DATA_DIR": folder,
            "CATALOGUE_HTTP_TOOL_HOSTS": "127.0.0.1",
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "LOG_LEVEL": "WARNING",
            "OPENAI_BASE_URL": f"{upstream}/v1",
            "OPENAI_API_KEY": "none",
            "OPENAI_MODEL": "instant",
        }
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        tools = Path(folder) / "tools.json"
        tools.write_text(json.dumps(TOOL | {"api": {"endpoint": f"{upstream}/orders", "method": "POST"}}))
        call_command("add_tools", str(tools), verbosity=0)
        call_command("create_mcp_token", "figures", stdout=(printed := io.StringIO()))
        from config.asgi import application

        with serving(application) as base_url:
            return {
                name: _count(profile, f"{base_url}{path}", body, headers | _authorized(printed.getvalue()))
                for name, (path, body, headers) in REQUESTS.items()
            }


def _authorized(printed: str) -> dict[str, str]:
    return {"authorization": f"Bearer {printed.strip()}", "content-type": "application/json"}


CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
REQUESTS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    CALLS[0]: (
        "/mcp",
        CALL | {"params": {"_meta": META, "name": TOOL["name"], "arguments": ARGUMENTS}},
        MCP_HEADERS,
    ),
    CALLS[1]: (
        "/workflow",
        {"user_instructions": "Order two kettles.", "tool_ids": [TOOL["name"]], "format_response": True},
        {},
    ),
}
WARM_UP, MEASURED = 5, 5


def _count(profile: Profile, url: str, body: dict[str, Any], headers: dict[str, str]) -> Counter[str]:
    """The median of some requests, because the process's own work, such as reading the revision, is in
    few."""
    found: list[Counter[str]] = []
    for number in range(WARM_UP + MEASURED):
        profile.calls = Counter()
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - loopback
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            answer = response.read()
        time.sleep(QUIET_SECONDS)
        calls, profile.calls = profile.calls, None
        if ORDER.encode() not in answer:
            sys.exit(f"The order was not made: {answer!r}")
        if number >= WARM_UP:
            found.append(calls)
    return sorted(found, key=Counter.total)[MEASURED // 2]


QUIET_SECONDS = 0.3
"""Work that a request leaves to other threads counts for the request."""


def calls(root: Path) -> dict[str, Counter[str]]:
    """`count_calls` in a separate process, in this folder."""
    command = [sys.executable, str(Path(__file__).resolve()), "--count"]
    printed = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True).stdout
    return {name: Counter(found) for name, found in json.loads(printed.splitlines()[-1]).items()}


# Reports


@contextmanager
def unpacked(revision: str) -> Iterator[Path]:
    archive = subprocess.run(
        ["git", "archive", "--format=tar", revision],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder)


def all_figures(root: Path, *, with_calls: bool) -> dict[str, str]:
    counted = calls(root) if with_calls else {}
    found = figures(root)
    for name, calls_made in counted.items():
        entered = sum(count for function, count in calls_made.items() if not function.endswith(RESUMED))
        found |= {name: f"{calls_made.total():,}", f"  without resumptions{name[22:]}": f"{entered:,}"}
    return found


def details(root: Path, *, with_calls: bool) -> Iterator[str]:
    modules = read_modules(root)
    imports = imports_of(modules)
    yield "\nCircles:"
    yield from (f"  {' '.join(circle)}" for circle in circles(imports))
    yield "\nModules with one importer, next door:"
    yield from (f"  {name}" for name in lonely(modules, imports))
    yield f"\nFunctions of at most {SMALL} lines that are used once:"
    yield from (f"  {name} ({lines})" for name, lines in used_once(modules) if lines <= SMALL)
    for name, found in (calls(root) if with_calls else {}).items():
        yield f"\n{name.capitalize()}:"
        yield from (f"  {count:4} {function}" for function, count in found.most_common())


# The map


MAP = ROOT / "CONTRIBUTING.md"
BEGINNING, END = "<!-- Made by `make map`. -->\n", "<!-- End of the map. -->"


def draw_map(root: Path) -> str:
    """The imports among the rooms, as Mermaid, without arrows that another path implies."""
    below: dict[str, set[str]] = {room: set() for room in ROOMS}
    for name, imported in imports_of(read_modules(root)).items():
        room = name.partition(".")[0]
        below[room] |= {other.partition(".")[0] for other in imported} - {room}
    lines = ["```mermaid", "flowchart TD"]
    for room in ROOMS:
        implied = {far for near in below[room] for far in _reached_from(near, below) - {near}}
        lines += [f"    {room} --> {other}" for other in sorted(below[room] - implied)]
    return "\n".join([*lines, "```", ""])


def write_map(*, only_compare: bool) -> None:
    text = MAP.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGINNING)
    _, _, after = rest.partition(END)
    drawn = f"{before}{BEGINNING}{draw_map(ROOT)}{END}{after}"
    if only_compare and drawn != text:
        sys.exit(f"The map in {MAP.name} is not what the imports are: run `make map`.")
    MAP.write_text(drawn, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", action="store_true", help="count calls too, which takes a minute")
    parser.add_argument("--against", metavar="REVISION", help="show the figures of this revision beside them")
    parser.add_argument("--details", action="store_true", help="list what was counted")
    parser.add_argument("--map", choices=("write", "compare"), help="draw the rooms, or check their picture")
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count:
        print(json.dumps(count_calls()))
        return
    if options.map:
        write_map(only_compare=options.map == "compare")
        return
    columns = [all_figures(ROOT, with_calls=options.calls)]
    if options.against:
        with unpacked(options.against) as root:
            columns.insert(0, all_figures(root, with_calls=options.calls))
        print(f"{'':45}{options.against[:12]:>14}{'now':>14}")
    for name in columns[0]:
        print(f"{name:45}" + "".join(f"{column[name]:>14}" for column in columns))
    for line in details(ROOT, with_calls=options.calls) if options.details else ():
        print(line)


if __name__ == "__main__":
    main()
