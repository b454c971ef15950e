"""Logging: Django's and the libraries' entries, too, go through loguru to stderr."""

import json
import logging
import re
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from django.db.utils import OperationalError
from loguru import logger

from catalogue.database_problems import is_not_migrated
from config.environment import MIGRATE_FIRST
from connectors.network.redaction import escaped, mask_credentials
from telemetry.metrics import REFUSED, bounded, log_entries
from telemetry.traces import current_trace_id, request_id

CONTINUED = "    "  # Indents tracebacks, which may quote engines: only an entry begins with its time
QUIET_LOGGERS = {  # They would log one line per request, task and tick
    "httpx2": "WARNING",
    "mcp": "WARNING",
    # It quotes responses of engines; the connector reports the same without quoting.
    "mcp.client": "CRITICAL",
    "uvicorn.access": "WARNING",
    "celery.app.trace": "WARNING",
    "celery.beat": "WARNING",
    "celery.worker.strategy": "WARNING",
    # Ticks expire while a worker is busy or the database is away.
    "celery.worker.request": "WARNING",
    # It counts what it has deleted, in six lines an hour.
    "oauth2_provider.models": "WARNING",
    "asyncio": "WARNING",
    "kombu": "WARNING",
    # It warns that the embedded broker has no host name.
    "kombu.connection": "ERROR",
    "amqp": "WARNING",
}
OWN_HANDLERS = ("uvicorn", "uvicorn.error", "uvicorn.access")  # With handlers before our settings are read
KNOWN_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
WARNING = 30
BAD_REQUEST, SERVER_ERROR, SERVICE_UNAVAILABLE = 400, 500, 503
UNUSABLE_POSTGRES = ("53", "57P")  # Disk, memory or connections are used up; shutting down or starting
UNUSABLE_SQLITE = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY")
NO_FIELDS = ("process", "line", "recurring")  # Extra values that are none of `logger.bind(execution=...)`
CONSUMER, UNKNOWN_TASK = "celery.worker.consumer.consumer", "Received unregistered task"
RAISED = re.compile(r"(.+?) raised(?: unexpected)?: ")  # As Celery tells of every error, an outage too
RECURRING = {  # Loggers, and how the messages begin that they repeat with each attempt
    "psycopg.pool": ("",),
    "celery.beat": ("Message Error",),
    CONSUMER: ("consumer: Cannot connect", UNKNOWN_TASK),
}
AGAIN_SECONDS = 300.0  # Within which a recurring problem has one line, or as many as the next line says
MAX_LINES = {REFUSED: 100}
MAX_RECURRING = 500


class _ToLoguru(logging.Handler):
    """Forwards records of the standard library, with their origin."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname if record.levelname in KNOWN_LEVELS else record.levelno
        exception, message = record.exc_info, record.getMessage()
        if is_refusal := _is_refusal(record):
            # Django calls some of these errors; the message suffices.
            level, exception = "WARNING", None
        if record.name == "celery.beat" and message.startswith("Message Error"):
            # It tells of each tick without a broker by a stack and a traceback: 150 lines a second.
            message, exception = message.partition("\n")[0], None
        if record.name == CONSUMER and message.startswith(UNKNOWN_TASK):
            # Celery gives a traceback, and hints for who writes tasks. During an upgrade, beat of the next
            # version sends it to workers that are not yet replaced.
            task, level, exception = message.partition("'")[2].partition("'")[0], "WARNING", None
            message = (
                f"This worker's version has no task {task}, which a process of another version sent; it was "
                "dropped. Restart this worker with that version. During an upgrade, restart beat last."
            )
        if record.name == "django.request" and getattr(record, "status_code", 0) == SERVICE_UNAVAILABLE:
            level = level if exception else "DEBUG"  # What answered it has logged why.
        begins = RECURRING.get(record.name)
        repeats = begins is not None and record.getMessage().startswith(begins)
        recurring = REFUSED if is_refusal else f"{record.name}: {record.msg}" if repeats else ""
        error = exception[1] if isinstance(exception, tuple) else None
        raised = RAISED.match(message) if is_not_migrated(error) or _is_outage(error) else None
        if raised and record.name.startswith("celery."):
            recurring, advice = _first_line(error), f". {MIGRATE_FIRST}" if is_not_migrated(error) else ""
            message, exception = f"{raised[1]} cannot be done without the database: {recurring}{advice}", None

        def set_origin(entry: Any) -> None:
            """Otherwise every line would appear to come from this file."""
            entry["name"], entry["function"], entry["line"] = record.name, record.funcName, record.lineno
            if recurring:
                entry["extra"]["recurring"] = recurring

        logger.opt(exception=exception).patch(set_origin).log(level, "{}", message)


def _is_refusal(record: logging.LogRecord) -> bool:
    """Returns whether a request is at fault. Scans of the network send any number of these."""
    if record.name == "django.request":
        return BAD_REQUEST <= getattr(record, "status_code", 0) < SERVER_ERROR
    is_unreadable = record.name == "uvicorn.error" and record.msg == "Invalid HTTP request received."
    return is_unreadable or record.name.startswith("django.security.")


class _Once:
    """Lets an entry with `logger.bind(recurring=problem)` through once in some minutes for each problem, with
    the number of those that it has left out. While a server is away, each request and tick has the same.
    Problems of `MAX_LINES` are let through more often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shown: dict[str, tuple[float, int]] = {}  # Since when, and how many came

    def __call__(self, record: Any) -> bool:
        problem = record["extra"].get("recurring")
        if problem is None:
            return True
        now, most = time.monotonic(), MAX_LINES.get(problem, 1)
        with self._lock:
            since, came = self._shown.pop(problem, (float("-inf"), 0))
            left_out = 0
            if now - since >= AGAIN_SECONDS:
                since, came, left_out = now, 0, max(0, came - most)
            # The end of the dictionary has the latest.
            self._shown[problem] = (since, came + 1)
            if len(self._shown) > MAX_RECURRING:
                del self._shown[next(iter(self._shown))]
        if left_out:
            record["message"] += f" ({left_out:,} more of these were not logged)"
        return came < most


def configure_logging(*, level: str, log_format: str) -> None:
    """Make loguru the only sink; may be called again."""
    logger.remove()
    logger.configure(extra={"process": process_name(sys.argv)}, patcher=_name_request)
    line_of = as_json if log_format == "json" else as_text
    once = None if level == "DEBUG" else _Once()
    logger.add(sys.stderr, level=level, format=line_of, filter=once, backtrace=False, diagnose=False)
    logging.basicConfig(handlers=[_ToLoguru()], level=level, force=True)
    for name in OWN_HANDLERS:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    for name, quiet_level in QUIET_LOGGERS.items():
        logging.getLogger(name).setLevel(quiet_level)


def _name_request(record: Any) -> None:
    """Adds the request's id to every line that the request causes, in any process, tells what recurs, and
    counts lines for operators."""
    if identity := request_id.get():
        record["extra"]["request_id"] = identity
    if trace := current_trace_id():
        record["extra"]["trace_id"] = trace
    error = record["exception"] and record["exception"].value
    if error is not None and (_is_outage(error) or is_not_migrated(error)):
        record["extra"].setdefault("recurring", _first_line(error))
    if record["level"].no >= WARNING:
        log_entries.labels(bounded(record["level"].name, KNOWN_LEVELS)).inc()


def as_text(record: Any) -> str:
    """One line for the message and the bound values as key=value, and indented ones for a traceback."""
    time, level, extra = record["time"], record["level"].name, record["extra"]
    origin = f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03} {level:<7} {extra['process']}"
    fields = "".join(f" {key}={value}" for key, value in extra.items() if key not in NO_FIELDS)
    line = f"{origin} {record['name']}: {escaped(record['message'] + fields)}"
    if record["exception"] is not None:
        lines = _traceback(record["exception"].value).splitlines()
        line = "\n".join([line, *(CONTINUED + escaped(part) for part in lines)])
    extra["line"] = line
    return "{extra[line]}\n"


def _traceback(error: BaseException) -> str:
    """Hides credentials, which the error of a connector may quote. While a database server is away or not
    migrated, all ticks and requests fail, and their tracebacks hid everything else."""
    if is_not_migrated(error):
        parts = [*traceback.format_exception_only(error), MIGRATE_FIRST]
    elif _is_outage(error):
        parts = traceback.format_exception_only(error)
    else:
        parts = traceback.format_exception(error)
    return mask_credentials("".join(parts))


def _first_line(error: BaseException | None) -> str:
    return str(error).partition("\n")[0]


def _is_outage(error: BaseException | None) -> bool:
    """Returns whether the database cannot be used, whatever the query: it is away, or its disk is full."""
    if not isinstance(error, OperationalError):
        return False
    sqlstate = getattr(error.__cause__, "sqlstate", "")
    name: str = getattr(error.__cause__, "sqlite_errorname", "")
    return sqlstate is None or sqlstate.startswith(UNUSABLE_POSTGRES) or name.startswith(UNUSABLE_SQLITE)


def as_json(record: Any) -> str:
    """One flat object per line, with the bound values beside the message."""
    line = {
        "time": record["time"].isoformat(),
        "level": record["level"].name,
        "process": record["extra"]["process"],
        "logger": record["name"],
        "message": record["message"],
        **{key: value for key, value in record["extra"].items() if key not in NO_FIELDS},
    }
    if record["exception"] is not None:
        line["exception"] = _traceback(record["exception"].value)
    record["extra"]["line"] = json.dumps(line, default=str)  # In ASCII: no line end or change of direction
    return "{extra[line]}\n"


def process_name(command: list[str]) -> str:
    """web, worker, beat or the name of a command."""
    program, words = Path(command[0]), command[1:]
    name = program.parent.name if program.stem == "__main__" else program.stem
    if name == "celery":
        return next((word for word in words if word in ("worker", "beat")), name)
    if name in ("manage", "workflow-catalogue", "workflow_catalogue") and words:
        name = words[0]
    return "web" if name in ("uvicorn", "serve") else name
