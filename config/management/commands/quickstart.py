"""`manage.py quickstart`, the command of `make run` and of `workflow-catalogue quickstart`."""

import errno
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from shlex import quote
from threading import Lock, Thread
from typing import Any

import httpx2
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import CommandError
from django.db import OperationalError, connections
from loguru import logger

from catalogue.actions.sources import change_source, create_source
from catalogue.database import bring_up_to_date
from catalogue.database_problems import describe_problem
from catalogue.discovery import RefreshRefused, refresh_source
from catalogue.exposure import load_exposed_catalogue
from catalogue.management.base import CatalogueCommand
from catalogue.models import DiscoveryRun, Source
from catalogue.naming import counted
from catalogue.secrets import CredentialsUnreadable
from config.environment import BASE_DIR, COMMAND, IS_CHECKOUT
from config.private_files import write_secret
from identity.client_configuration import TOKEN_HERE, HttpServer, McpClient
from identity.models import AccessToken
from identity.tokens import create_token

HOST = "127.0.0.1"
DEFAULT_ENGINE_PORT = 8090
TAKEN = "is in use, perhaps by another quickstart or a web process"
STOP_SECONDS = 9.5  # supervisord needs less: it kills programs that do not stop
TOKEN_NAME = "quickstart"  # noqa: S105 - what it is called
ADMIN_NAME = "admin"
_EXAMPLE_CALL = """call_tool text_statistics '{"text": "Hello, catalogue."}'"""
ELSEWHERE = ("CATALOGUE_SETTINGS_DIR", "CATALOGUE_DATA_DIR", "CATALOGUE_PUBLIC_URL", "PORT")
"""Variables without which a command in another terminal would have to do with another installation."""
START_SECONDS = 60.0
PROBE_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleEngine:
    port: int
    api_key: str

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self.port}"


@contextmanager
def claimed(data_dir: Path, *, port: int) -> Iterator[None]:
    """Lock the data folder against a second start."""
    try:
        file = (data_dir / "quickstart.lock").open("a+", encoding="ascii")
    except OSError as error:
        raise CommandError(
            f"The data folder {data_dir} cannot be written: {error.strerror}. Make it writable, or "
            "set CATALOGUE_DATA_DIR to another folder."
        ) from None
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise CommandError(
                f"The product is already running at {lock.read().strip()} with the data in "
                f"{data_dir}. Stop it first (Ctrl-C), or set CATALOGUE_DATA_DIR to start "
                "another instance beside it."
            ) from None
        lock.truncate(0)
        lock.write(f"http://localhost:{port} (process {os.getpid()})")
        lock.flush()
        yield


@contextmanager
def reserved(port: int) -> Iterator[str | None]:
    """Reserve a port until its program listens. Yields why it is unusable, or None."""
    path = Path(tempfile.gettempdir()) / f"workflow-catalogue-port-{port}.lock"
    problem: str | None
    with ExitStack() as kept:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            kept.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # Another start holds it, or another user's start has made it.
            problem = TAKEN
        else:
            problem = None
            try:
                _bind(port)
            except OSError as error:
                in_use = error.errno == errno.EADDRINUSE
                problem = TAKEN if in_use else f"cannot be used ({error.strerror})"
        yield problem


@contextmanager
def claimed_port(port: int) -> Iterator[None]:
    with reserved(port) as problem:
        if problem:
            another = port + 1 if port < 65535 else port - 1
            raise CommandError(
                f"Port {port} {problem}. Choose another one, for example: PORT={another} "
                + ("make run" if IS_CHECKOUT else f"{COMMAND} quickstart")
            )
        yield


@contextmanager
def chosen_engine(data_dir: Path) -> Iterator[tuple[ExampleEngine | None, ExampleEngine]]:
    """The previous start's engine, if any, and this one's. The key never changes, the port only when it is
    taken; it is reserved for the length of the block."""
    path = data_dir / "example-engine.json"
    try:
        before = ExampleEngine(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        before = None
    api_key = before.api_key if before else secrets.token_urlsafe(24)
    wanted = (before.port if before else DEFAULT_ENGINE_PORT, DEFAULT_ENGINE_PORT)
    for port in chain(wanted, iter(lambda: _bind(0), None)):
        with reserved(port) as problem:
            if problem:
                continue
            now = ExampleEngine(port=port, api_key=api_key)
            if now != before:
                write_secret(path, json.dumps(asdict(now)))
            yield before, now
            return


def _bind(port: int) -> int:
    """Returns the port, or a free one for 0. Raises OSError if it cannot be used."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
        return int(probe.getsockname()[1])


class Supervisor:
    def __init__(self, variables: dict[str, str]) -> None:
        self._printing = Lock()
        deploy = Path(BASE_DIR) / "deploy"
        options = ["-m", "supervisor.supervisord", "--configuration", str(deploy / "supervisord.conf")]
        # Without a user it prints a warning when run as root.
        as_root = ["--user", "0"] if os.geteuid() == 0 else []
        self.process = subprocess.Popen(
            [sys.executable, str(deploy / "tethered.py"), *options, *as_root],
            cwd=BASE_DIR,
            env=os.environ | variables | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches all of a terminal's processes at once; these are stopped in order instead.
            start_new_session=True,
        )
        Thread(target=self._copy_output, name="output", daemon=True).start()

    def say(self, text: str) -> None:
        """Print between lines of the programs."""
        with self._printing:
            print(text, flush=True)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # The programs are tethered to it, so they end as well.
            self.process.kill()
            self.process.wait()

    def _copy_output(self) -> None:
        """Through a pipe, because supervisord cannot write to every kind of standard output."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._printing:
                try:
                    sys.stdout.buffer.write(line)
                    sys.stdout.buffer.flush()
                except OSError:
                    # The reader is gone; the programs must still be able to write.
                    continue


@contextmanager
def supervised(variables: dict[str, str]) -> Iterator[Supervisor]:
    supervisor = Supervisor(variables)
    try:
        yield supervisor
    finally:
        supervisor.stop()


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    address: str  # Base URL without a trailing slash
    password: str | None  # The admin's, known only to the start that made it
    token: str | None  # For MCP and REST; None if it may no longer be shown
    tools: int


def is_first_start() -> bool:
    """The admin is created last, so that an interrupted first start is repeated."""
    return not get_user_model().objects.filter(is_superuser=True).exists()


def connect_engine(engine: ExampleEngine, *, before: ExampleEngine | None, first: bool) -> None:
    """Add the example engine at the first start; later only update its address."""
    source = Source.objects.filter(name=settings.DEMO_SOURCE).first()
    if source is None and first:
        _add_source(engine)
    elif source and before and source.config.get("base_url") == before.base_url:
        config = source.config | {"base_url": engine.base_url}
        credentials = {"api_key": engine.api_key}
        try:
            unchanged = config == source.config and credentials == source.credentials
        except CredentialsUnreadable:
            unchanged = False
        if not unchanged:
            change_source(source, config=config, credentials=credentials)


def quickstart_token(data_dir: Path, *, first: bool) -> str | None:
    """Returns the first start's token, kept in a file so that later starts can show it."""
    path = data_dir / "quickstart-token"
    known = AccessToken.objects.filter(name=TOKEN_NAME).first()
    if known is None and first:
        _, token = create_token(name=TOKEN_NAME)
        write_secret(path, token)
        return token
    token = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    usable = known is not None and AccessToken.objects.usable().filter(pk=known.pk).exists()
    return token if usable and known is not None and token.startswith(known.prefix) else None


def in_another_terminal(words: str) -> str:
    """Returns the command line that runs these words with the data, and at the address, of this process."""
    given = {name: value for name in ELSEWHERE if (value := os.environ.get(name))}
    folders = {name: str(Path(value).absolute()) for name, value in given.items() if name.endswith("_DIR")}
    return " ".join(
        [*(f"{name}={quote(value)}" for name, value in (given | folders).items()), COMMAND, words]
    )


def banner(welcome: Welcome) -> str:
    if welcome.password:
        login = f"{ADMIN_NAME} / {welcome.password}   (shown only once: write it down)"
    else:
        login = f"{ADMIN_NAME} / unchanged; forgotten? {in_another_terminal(f'changepassword {ADMIN_NAME}')}"
    tools = counted(welcome.tools, "workflow")
    return "\n".join(
        [
            "",
            "=" * 78,
            f"  Workflow Catalogue is up, with {tools} as tools. Ctrl-C stops it.",
            "",
            f"  MCP     {welcome.address}/mcp",
            f"  Token   {welcome.token or in_another_terminal('create_mcp_token NAME')}",
            f"  Admin   {welcome.address}/admin/",
            f"  Login   {login}",
            f"  REST    {welcome.address}/api/",
            "",
            "  What to do next:",
            "",
            "  - Call a tool, in another terminal:",
            in_another_terminal(_EXAMPLE_CALL),
            "  - Connect a client to the MCP address. Claude Code:",
            HttpServer(token=welcome.token or TOKEN_HERE).configure(McpClient.CLAUDE_CODE),
            "    Other clients, signing in without a token, and stdio:",
            in_another_terminal("client_config [--stdio | --token TOKEN]"),
            "  - Connect an engine of your own: in the admin under Sources, or with add_source.",
            f"    {settings.DEMO_SOURCE} is a demo. If you delete it under Sources, it does not come back.",
            f"  - Read on: {BASE_DIR / 'docs' / 'index.md'}",
            "=" * 78,
            "",
        ]
    )


def _add_source(engine: ExampleEngine) -> None:
    source = create_source(
        name=settings.DEMO_SOURCE,
        kind="simplified",
        config={"base_url": engine.base_url, "idempotency_header": "Idempotency-Key"},
        credentials={"api_key": engine.api_key},
        # Enabled as they are found, by this start or by the worker.
        new_workflows=Source.NewWorkflows.EXPOSED,
    )
    try:
        run = refresh_source(source)
    except RefreshRefused:
        return
    if run.outcome == DiscoveryRun.Outcome.FAILED:
        logger.warning("The example engine could not be listed: {}", run.error)


def run_everything(*, data_dir: Path, port: int) -> None:
    """Runs until interrupted. Raises CommandError if it cannot start or ends unexpectedly."""
    with claimed(data_dir, port=port), claimed_port(port), chosen_engine(data_dir) as (before, engine):
        print(f"Starting on port {port}, with the data in {data_dir} ...", flush=True)
        migrate()
        with supervised(_variables(data_dir, port, engine)) as supervisor:
            wait_for(supervisor, f"{engine.base_url}/healthz", "the example engine")
            connect_engine(engine, before=before, first=is_first_start())
            wait_for(supervisor, f"http://{HOST}:{port}/admin/login/", "the web server")
            supervisor.say(banner(welcome(data_dir)))
            # Waiting needs no database.
            for database in connections.all(initialized_only=True):
                database.close()
                if close_pool := getattr(database, "close_pool", None):
                    close_pool()
            code = supervisor.process.wait()
        raise CommandError(f"The supervisor ended unexpectedly with code {code}.")


def migrate() -> None:
    try:
        bring_up_to_date(partial(print, flush=True))
    except OperationalError as error:
        raise CommandError(describe_problem(error)) from None


def wait_for(supervisor: Supervisor, url: str, what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    with httpx2.Client(timeout=5, trust_env=False) as client:
        while time.monotonic() < deadline and supervisor.process.poll() is None:
            try:
                if client.get(url).is_success:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(PROBE_SECONDS)
    raise CommandError(f"{what.capitalize()} does not respond at {url}; see the output above.")


def _variables(data_dir: Path, port: int, engine: ExampleEngine) -> dict[str, str]:
    return {
        "CATALOGUE_DATA_DIR": str(data_dir),
        "QUICKSTART_PYTHON": quote(sys.executable),
        "QUICKSTART_DATA_DIR": quote(str(data_dir)),
        "PORT": str(port),
        "QUICKSTART_ENGINE_PORT": str(engine.port),
        "EXAMPLE_ENGINE_API_KEY": engine.api_key,
    }


def welcome(data_dir: Path) -> Welcome:
    """Creates the admin at the first start."""
    first = is_first_start()
    token = quickstart_token(data_dir, first=first)
    password = secrets.token_urlsafe(12) if first else None
    if password:
        get_user_model().objects.create_superuser(username=ADMIN_NAME, email="", password=password)
    tools = len(load_exposed_catalogue().workflows)
    return Welcome(address=settings.PUBLIC_URL, token=token, password=password, tools=tools)


class Command(CatalogueCommand):
    help = (
        "Run the web server, the worker, its schedule and an example engine until Ctrl-C. The "
        "first start also creates the database, an admin and a token, and connects the example "
        "engine. The web server listens on port 8000, or on the port in the environment variable PORT: "
        f"PORT=8001 {COMMAND} quickstart"
    )
    makes_database = False

    def handle(self, *args: Any, **options: Any) -> None:
        # SIGINT too: shells make background programs ignore it.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        try:
            run_everything(data_dir=settings.DATA_DIR.absolute(), port=settings.ENVIRONMENT.port)
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")
