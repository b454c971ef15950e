"""The order of a start: claim, migrate, run, connect, tell."""

import time
from functools import partial
from pathlib import Path

import httpx2
from django.conf import settings
from django.core.management import CommandError
from django.db import OperationalError, connections

from catalogue.embedded_database import bring_up_to_date
from config.quickstart.place import HOST, ExampleEngine, chosen_engine, claimed, claimed_port
from config.quickstart.supervision import Supervisor, supervised
from config.quickstart.welcome import (
    Welcome,
    banner,
    connect_engine,
    count_tools,
    is_first_start,
    make_admin,
    quickstart_token,
)

START_SECONDS = 60.0
PROBE_SECONDS = 0.05


def run_everything(*, data_dir: Path, port: int) -> None:
    """Until it is interrupted. Raises CommandError when it cannot start or ends by itself."""
    with claimed(data_dir, port=port), claimed_port(port), chosen_engine(data_dir) as (before, engine):
        print(f"Starting on port {port}, with the data in {data_dir} ...", flush=True)
        migrate()
        with supervised(_variables(data_dir, port, engine)) as supervisor:
            first = is_first_start()
            wait_for(supervisor, f"{engine.base_url}/healthz", "the example engine")
            connect_engine(engine, before=before, first=first)
            wait_for(supervisor, f"http://{HOST}:{port}/admin/login/", "the web server")
            supervisor.say(banner(_welcome(data_dir, first=first)))
            disconnect()
            code = supervisor.wait()
        raise CommandError(f"The supervisor ended by itself, with code {code}.")


def migrate() -> None:
    """Bring the database up to date, silently when it is."""
    try:
        bring_up_to_date(partial(print, flush=True))
    except OperationalError as error:
        raise CommandError(f"The database cannot be used: {error}") from None


def disconnect() -> None:
    """What remains is waiting, which needs no database."""
    for database in connections.all(initialized_only=True):
        database.close()
        if close_pool := getattr(database, "close_pool", None):
            close_pool()


def wait_for(supervisor: Supervisor, url: str, what: str) -> None:
    """Until it answers. What it prints meanwhile tells more than we could."""
    deadline = time.monotonic() + START_SECONDS
    with httpx2.Client(timeout=5, trust_env=False) as client:
        while time.monotonic() < deadline and supervisor.alive:
            try:
                if client.get(url).is_success:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(PROBE_SECONDS)
    raise CommandError(f"{what.capitalize()} does not answer at {url}; see what was printed above.")


def _variables(data_dir: Path, port: int, engine: ExampleEngine) -> dict[str, str]:
    return {
        "CATALOGUE_DATA_DIR": str(data_dir),
        "PORT": str(port),
        "QUICKSTART_ENGINE_PORT": str(engine.port),
        "EXAMPLE_ENGINE_API_KEY": engine.api_key,
    }


def _welcome(data_dir: Path, *, first: bool) -> Welcome:
    return Welcome(
        address=settings.PUBLIC_URL,
        token=quickstart_token(data_dir, first=first),
        # Last, because its existence says that the first start got this far.
        password=make_admin() if first else None,
        tools=count_tools(),
    )
