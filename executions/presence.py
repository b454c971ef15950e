"""Whether a worker is alive, and which process stands in for the workers where none is.

A row renewed by compare-and-set, so that of several processes without workers one alone stands in, and gives
way as soon as there is a worker. It only decides who looks for work: leases keep the work itself apart.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from executions.models import WorkerPresence

SILENCE = timedelta(seconds=10)
"""After which no worker is believed to be alive. Ticks come each second, and late on a busy machine."""
RENEWAL_SECONDS = 2.0


def note_worker() -> None:
    """A worker has just done what was due."""
    _renew(Q(), process="")


def stand_in(process: str) -> bool:
    """Whether `process` is to do the workers' work; it has to ask again every few seconds."""
    return _renew(Q(process=process) | Q(seen_at__lt=timezone.now() - SILENCE), process=process)


def stand_down(process: str) -> None:
    """It is about to end: another one may stand in at once."""
    WorkerPresence.objects.filter(process=process).delete()


def at_most_every(seconds: float, call: Callable[[], None]) -> Callable[[], None]:
    """The same, for who is called more often; calls that come too early do nothing."""
    last, lock = [float("-inf")], threading.Lock()

    def call_seldom() -> None:
        with lock:
            if (now := time.monotonic()) - last[0] < seconds:
                return
            last[0] = now
        call()

    return call_seldom


def _renew(free: Q, *, process: str) -> bool:
    """Whether the row is ours now: it was free, or there was none."""
    now, only = timezone.now(), WorkerPresence.objects.filter(pk=WorkerPresence.ONLY)
    if only.filter(free).update(seen_at=now, process=process):
        return True
    if only.exists():
        return False
    try:
        with transaction.atomic():
            WorkerPresence.objects.create(seen_at=now, process=process)
    except IntegrityError:
        # Another process was faster; for a worker it does not matter which.
        return False
    return True
