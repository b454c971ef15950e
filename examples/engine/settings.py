"""The engine's settings, on the command line or in the environment."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "EXAMPLE_ENGINE_"
LOG_LEVELS = ("debug", "info", "warning", "error")
TRUTHS = {"1", "true", "yes", "on"}

DESCRIPTION = "Run the example workflow engine: eight real workflows behind a Conductor-like REST API."
EPILOG = """\
Each option can also come from the environment variable in brackets; the command line wins. Prefer
EXAMPLE_ENGINE_API_KEY to --api-key, since other users of a machine can read its command lines.

The engine stops within a second of SIGTERM or Ctrl-C. Runs it leaves unfinished stay RUNNING in the
database and are resumed by the next engine started on it, after a crash too.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    host: str
    port: int
    database: Path
    api_key: str
    honours_keys: bool
    log_level: str


def read_settings(arguments: Sequence[str] | None = None) -> Settings:
    """The settings from a command line, or SystemExit with an explanation on stderr."""
    parser = build_parser()
    given = parser.parse_args(arguments)
    if not given.api_key:
        parser.error(f"an API key is required: set {PREFIX}API_KEY or pass --api-key")
    if given.log_level not in LOG_LEVELS:
        parser.error(f"the log level must be one of {', '.join(LOG_LEVELS)}, not {given.log_level!r}")
    return Settings(
        given.host, given.port, given.db, given.api_key, not given.no_idempotency, given.log_level
    )


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.engine",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--host", **option("HOST", "127.0.0.1", "address to listen on"))
    add("--port", type=int, **option("PORT", "8090", "port to listen on"))
    add(
        "--db", type=Path, **option("DB", "var/engine.sqlite3", "SQLite file of the runs, created if missing")
    )
    add("--api-key", **option("API_KEY", "", "the key that clients must present (required)"))
    add("--log-level", **option("LOG_LEVEL", "info", f"{', '.join(LOG_LEVELS)}; debug logs each request"))
    add(
        "--no-idempotency",
        action="store_true",
        default=from_environment("NO_IDEMPOTENCY", "") in TRUTHS,
        help=f"record the Idempotency-Key header, yet start a new run every time [{PREFIX}NO_IDEMPOTENCY=1]",
    )
    return parser


def option(variable: str, fallback: str, meaning: str) -> dict[str, Any]:
    """Returns argparse's arguments for an option; the environment's value, if any, is its default."""
    shown = f"{meaning} (default: {fallback})" if fallback else meaning
    return {
        "metavar": variable.rpartition("_")[2],
        "default": from_environment(variable, fallback),
        "help": f"{shown} [{PREFIX}{variable}]",
    }


def from_environment(variable: str, fallback: str) -> str:
    return os.environ.get(PREFIX + variable) or fallback
