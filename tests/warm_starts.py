"""Processes of the product that begin with the libraries imported: two thirds of what a start costs.

A server, started once by each worker that needs it, forks for each program. It has imported nothing of the
product that reads the environment or Django's settings, so a program finds the environment that it is given.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = (
    "celery.app.amqp",
    "connectors.network.client",
    "connectors.registry",
    "django.core.management",
    "django.db.backends.sqlite3.base",
    "django.forms",
    "httpx2",
    "loguru",
    "mcp.server.lowlevel",
    "psycopg",
    "pydantic_settings",
)
SECONDS = 100


def run_warm(
    words: Sequence[str], *, environment: Mapping[str, str], umask: int = 0o022
) -> subprocess.CompletedProcess[str]:
    """What `python WORDS` does in the project's folder: `-c PROGRAM`, or a script and its arguments."""
    with tempfile.TemporaryDirectory() as folder:
        request = {"words": list(words), "environment": dict(environment), "umask": umask, "folder": folder}
        server = warm_server()
        assert server.stdin and server.stdout
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        said = {name: Path(folder, name).read_text(encoding="utf-8") for name in ("stdout", "stderr")}
    return subprocess.CompletedProcess(list(words), code, **said)


@cache
def warm_server() -> "subprocess.Popen[bytes]":
    """The server of this process, with which it ends: the pipe is closed then."""
    command = [sys.executable, "-m", __name__]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _serve() -> dict[str, Any] | None:
    """In a child, the program to run. None in the server, when the tests are over."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in requests:
        request: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if not pid:
            requests.close()
            answers.close()
            return request
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
    return None


def _become(request: dict[str, Any]) -> None:
    signal.alarm(SECONDS)
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        path = os.devnull if name == "stdin" else f"{request['folder']}/{name}"
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    option, *arguments = request["words"]
    if option == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [option, *arguments]
        runpy.run_path(option, run_name="__main__")


def _exit_code(run: Callable[[], None]) -> int:
    """As the interpreter does it, but for taking down all modules at the end, which costs half a start."""
    code: object = 0
    try:
        run()
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for library in LIBRARIES:
        import_module(library)
    gc.freeze()
    if (program := _serve()) is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os._exit(_exit_code(partial(_become, program)))
