"""Whether this process can serve: each check with a reason that anybody may read."""

import threading
import time
from contextlib import closing
from dataclasses import dataclass

from celery import current_app
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone
from loguru import logger

from config.broker import SCHEME
from executions.local_worker import SILENCE
from executions.models import WorkerPresence

REMEMBERED_SECONDS = 1.0  # So that any number of probes cost one round of checks
BROKER_SECONDS = 5.0  # The same for the broker, which takes a connection
BROKER_PATIENCE_SECONDS = 2
NO_DATABASE = "The database cannot be asked; the log has the details."
UNKNOWN = "Not known without the database."


@dataclass(frozen=True, slots=True)
class Check:
    ok: bool
    reason: str  # Without names of servers, errors' words and anything else that only operators should see


class Readiness:
    """Of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: tuple[float, dict[str, Check]] = (float("-inf"), {})
        self._broker: tuple[float, Check] = (float("-inf"), Check(False, ""))
        self._is_migrated = False

    def checks(self) -> dict[str, Check]:
        """By name. Needs a thread that may use the database."""
        with self._lock:
            looked_at, known = self._known
            if time.monotonic() - looked_at >= REMEMBERED_SECONDS:
                known = self._look()
                self._known = (time.monotonic(), known)
        return known

    def forget(self) -> None:
        self.__init__()  # type: ignore[misc]

    def _look(self) -> dict[str, Check]:
        try:
            migrations = self._check_migrations()
            presence = (
                WorkerPresence.objects.filter(pk=WorkerPresence.ONLY).first() if migrations.ok else None
            )
        except (DatabaseError, InterfaceError, OSError) as error:
            logger.error("Not ready, since the database cannot be asked: {}", error)
            lost = Check(False, UNKNOWN)
            of_database = {"database": Check(False, NO_DATABASE), "migrations": lost}
            return {**of_database, "broker": self._check_broker(), "beat": lost, "workers": lost}
        return {
            "database": Check(True, "It answers."),
            "migrations": migrations,
            "broker": self._check_broker(),
            "beat": _check_beat(presence),
            "workers": _check_workers(presence),
        }

    def _check_migrations(self) -> Check:
        """Asked until all are applied: they are not taken back under a process that runs. Those of newer code
        do not matter."""
        if not self._is_migrated:
            executor = MigrationExecutor(connection)
            missing = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
            if missing:
                return Check(False, f"{missing} are not applied: run the command migrate.")
            self._is_migrated = True
        return Check(True, "All are applied.")

    def _check_broker(self) -> Check:
        looked_at, known = self._broker
        if time.monotonic() - looked_at < BROKER_SECONDS:
            return known
        address = settings.CELERY_BROKER_URL.get_secret_value()
        known = _embedded_broker() if address.startswith(f"{SCHEME}:") else _broker_server()
        self._broker = (time.monotonic(), known)
        return known


def _embedded_broker() -> Check:
    folder = settings.DATA_DIR / "broker" / "messages"
    probe = folder / ".probe"
    try:
        probe.write_bytes(b"")
        probe.unlink(missing_ok=True)
    except OSError as error:
        logger.error("Not ready, since the embedded broker's folder cannot be written: {}", error)
        return Check(False, "The embedded broker's folder cannot be written.")
    return Check(True, "Embedded: its folder can be written.")


def _broker_server() -> Check:
    try:
        with closing(current_app.connection_for_write(connect_timeout=BROKER_PATIENCE_SECONDS)) as broker:
            broker.ensure_connection(max_retries=1, timeout=BROKER_PATIENCE_SECONDS)
    except Exception as error:  # noqa: BLE001 - each transport has errors of its own; logged in the next line
        logger.error("Not ready, since the broker cannot be reached: {}: {}", type(error).__name__, error)
        return Check(False, "It cannot be reached; the log has the details.")
    return Check(True, "It answers.")


def _check_beat(presence: WorkerPresence | None) -> Check:
    if presence is None:
        return Check(False, "No tick has been done yet: are a worker and beat running?")
    age = timezone.now() - presence.seen_at
    if age < SILENCE:
        return Check(True, f"The last tick was done {age.total_seconds():.0f} s ago.")
    alive = _is_alive(presence)
    advice = "A worker is alive: is beat running?" if alive else "No worker is alive to do one."
    return Check(False, f"The last tick was done {age.total_seconds():.0f} s ago. {advice}")


def _check_workers(presence: WorkerPresence | None) -> Check:
    if presence is None:
        return Check(False, "None has been seen yet.")
    if presence.process and timezone.now() - presence.seen_at < SILENCE:
        return Check(True, "A process without workers does their work itself.")
    last = max(presence.seen_at, presence.worker_at or presence.seen_at)
    seconds = (timezone.now() - last).total_seconds()
    return Check(_is_alive(presence), f"One was last seen {seconds:.0f} s ago.")


def _is_alive(presence: WorkerPresence) -> bool:
    last = max(presence.seen_at, presence.worker_at or presence.seen_at)
    return timezone.now() - last < SILENCE


readiness = Readiness()
