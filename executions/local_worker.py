"""The work of a worker, within a process that serves clients while no worker is alive."""

import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from celery import current_app
from django.db import DatabaseError, IntegrityError, InterfaceError, connections, transaction
from django.db.models import Q
from django.utils import timezone
from loguru import logger

from catalogue.database import DatabaseOutage
from catalogue.discovery import due_sources, give_up_listings, sources_to_list_at_start
from catalogue.models import DiscoveryRun
from catalogue.tasks import refresh_one_source
from connectors.background import finish_in_background_loop
from executions import advancing
from executions.models import WorkerPresence
from executions.queue import admit_queued
from executions.wakeups import poll_in_this_process, stands_in_for_workers

TICK_SECONDS = 1.0
LAST_STEPS_SECONDS = 2.0  # Clients kill a server that takes much longer to stop


class LocalWorker:
    """Stands in from `begin` to `end` while no worker is alive, by the workers' schedule."""

    def __init__(self) -> None:
        self._process = uuid.uuid4().hex
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="local-worker", daemon=True)
        self._due: dict[str, float] = {}
        self._under_way: dict[object, threading.Thread] = {}
        self._has_listed = False
        self._outage = DatabaseOutage("The local worker's look for other workers")
        # In place of the Celery tasks of these names, which report or need a worker.
        self._own_jobs: dict[str, Callable[[], None]] = {
            "executions.poll_due_executions": self._poll,
            "catalogue.refresh_due_sources": self._list_due_sources,
        }

    def begin(self) -> None:
        """Returns once it is decided which process does the work."""
        # As workers do: the schedule names tasks of all packages.
        current_app.loader.import_default_modules()
        self._look()
        self._thread.start()

    def end(self) -> None:
        """Wait briefly for the steps under way; the next process continues the rest."""
        self._ended.set()
        self._thread.join()
        if not stands_in_for_workers():
            return
        poll_in_this_process(None)
        last = time.monotonic() + LAST_STEPS_SECONDS
        finish_in_background_loop(advancing.finish_polling, seconds=LAST_STEPS_SECONDS)
        for thread in list(self._under_way.values()):
            thread.join(max(0.0, last - time.monotonic()))
        try:
            give_up_listings([source for source in self._under_way.copy() if isinstance(source, int)])
            WorkerPresence.objects.filter(process=self._process).delete()
        except (DatabaseError, InterfaceError) as error:
            logger.warning("The database failed while this process ended: {}", error)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    if stands_in_for_workers():
                        self._begin_due_jobs()
                    self._ended.wait(TICK_SECONDS)
                    self._look()
                except Exception:  # noqa: BLE001 - logged in the next line
                    logger.exception("A tick of the local worker failed")
        finally:
            connections.close_all()

    def _look(self) -> None:
        try:
            stands_in = stand_in(self._process)
        except (DatabaseError, InterfaceError) as error:
            self._outage.note(error)
            return
        self._outage.end()
        if stands_in and not stands_in_for_workers():
            logger.info(
                "No worker is running: this process lists the engines and follows the runs itself, "
                "while it runs."
            )
        elif not stands_in and stands_in_for_workers():
            logger.info("Another process lists the engines and follows the runs from now on.")
        poll_in_this_process(advancing.poll_due_executions if stands_in else None)

    def _begin_due_jobs(self) -> None:
        now = time.monotonic()
        for entry in current_app.conf.beat_schedule.values():
            name = entry["task"]
            if self._due.setdefault(name, now) <= now:
                self._due[name] = now + entry["schedule"]
                self._begin(name, self._own_jobs.get(name) or current_app.tasks[name])

    def _begin(self, key: object, job: Callable[[], object]) -> None:
        """Starts the job in its own thread, unless it is running already."""
        if key not in self._under_way:
            # Not in a pool, whose threads the interpreter waits for at exit.
            thread = threading.Thread(target=self._carry_out, args=(key, job), name=str(key), daemon=True)
            self._under_way[key] = thread
            thread.start()

    def _carry_out(self, key: object, job: Callable[[], object]) -> None:
        try:
            job()
        except Exception:  # noqa: BLE001 - logged in the next line
            logger.exception("Due work could not be done: {}", key)
        finally:
            connections.close_all()
            del self._under_way[key]

    def _poll(self) -> None:
        advancing.poll_due_executions()
        admit_queued()

    def _list_due_sources(self) -> None:
        """Each in its own thread, so that a slow engine delays no other."""
        if not self._has_listed:
            self._has_listed = True
            self._list(sources_to_list_at_start(), DiscoveryRun.Trigger.START)
        self._list(due_sources(), DiscoveryRun.Trigger.SCHEDULE)

    def _list(self, source_ids: list[int], trigger: DiscoveryRun.Trigger) -> None:
        for source_id in source_ids:
            self._begin(source_id, partial(refresh_one_source, source_id, trigger.value))


SILENCE = timedelta(seconds=10)  # After this, no worker counts as alive; ticks are late on a busy machine
RENEWAL_SECONDS = 2.0
HEARTBEAT_SECONDS = 3.0


def note_worker() -> None:
    _renew(Q(), process="")


def show_life(ended: threading.Event) -> None:
    """Record every few seconds that a worker is alive, even if no tick of beat reaches it, until it ends."""
    outage = DatabaseOutage("Recording that this worker is alive")
    while not ended.wait(HEARTBEAT_SECONDS):
        try:
            now = timezone.now()
            if not WorkerPresence.objects.filter(pk=WorkerPresence.ONLY).update(worker_at=now):
                first = WorkerPresence(seen_at=WorkerPresence.NEVER, worker_at=now)
                WorkerPresence.objects.bulk_create([first], ignore_conflicts=True)
        except (DatabaseError, InterfaceError) as error:
            outage.note(error)
        else:
            outage.end()
        finally:
            connections.close_all()


def stand_in(process: str) -> bool:
    """Returns whether `process` stands in for the workers; call it again every few seconds."""
    return _renew(Q(process=process) | Q(seen_at__lt=timezone.now() - SILENCE), process=process)


def at_most_every(seconds: float, call: Callable[[], None]) -> Callable[[], None]:
    """`call`, except that calls within `seconds` of the last do nothing."""
    last, lock = [float("-inf")], threading.Lock()

    def call_seldom() -> None:
        with lock:
            if (now := time.monotonic()) - last[0] < seconds:
                return
            last[0] = now
        call()

    return call_seldom


def _renew(free: Q, *, process: str) -> bool:
    """Returns whether the row is now this process's: it was free or missing."""
    now, only = timezone.now(), WorkerPresence.objects.filter(pk=WorkerPresence.ONLY)
    if only.filter(free).update(seen_at=now, process=process):
        return True
    if (presence := only.first()) is not None:
        if presence.seen_at > now + SILENCE:
            # By a clock that was ahead. A process that still does the work renews it.
            only.filter(seen_at=presence.seen_at).update(seen_at=now)
        return False
    try:
        with transaction.atomic():
            WorkerPresence.objects.create(seen_at=now, process=process)
    except IntegrityError:
        # Another process was faster; for a worker it does not matter which.
        return False
    return True
