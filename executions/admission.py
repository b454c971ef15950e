"""Whether there is room for one more execution, decided as it is recorded."""

import math
import threading
import time
from datetime import timedelta

from django.conf import settings
from django.db.models import Count, F, Q
from django.utils import timezone

from catalogue.models import Workflow
from executions.callers import Caller
from executions.limits import Limits, Occupancy, Place, expected, has_room, read_occupancy
from executions.models import Execution
from executions.queue import give_places, lock_admissions
from executions.refusals import Busy

MAX_AGE_SECONDS = 0.2
"""How long a process goes without counting what the others have admitted."""
RESERVE = 100
MINUTE = timedelta(seconds=60)


def admit(workflow: Workflow, caller: Caller) -> bool:
    """Within the transaction that records an execution: whether there is room for it now.

    False: it has to wait in the queue. Raises Busy where the queue is full too.
    """
    place = Place.of(workflow, caller.key)
    if not (tight := remembered.take_unless_tight(place)):
        return True
    lock_admissions()
    if has_room(tight) and _nobody_was_first(tight):
        remembered.take(place)
        return True
    _check_queue(caller)
    expected.add(tight)
    return False


def _nobody_was_first(tight: Limits) -> bool:
    """Whoever waits for a place that has just become free gets it before the newcomer is looked at."""
    if not Execution.objects.queued().exists():
        return True
    _, is_more = give_places()
    return not is_more and has_room(tight)


class _Remembered:
    """What was admitted when this process last looked, and what it has admitted itself since then.

    Far from every limit a call costs neither a query nor a lock. That is sound as long as all the processes
    together cannot fill, in the age of such a look and the time until a record is committed, what has to be
    left of each limit: the larger of RESERVE and half of the limit, which is 500 starts a second by one
    caller and some thousands in all. Nearer than that, and so always where a limit is 100 or less, they take
    turns and count anew.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        self._occupancy = Occupancy()
        self._read_at = -math.inf

    def take_unless_tight(self, place: Place) -> Limits:
        """The limits that are too near to rely on memory; if there are none, the place is taken."""
        limits = place.limits
        if not limits:
            return {}
        with self._lock:
            if time.monotonic() - self._read_at > MAX_AGE_SECONDS:
                self._look()
            tight = {
                room: most
                for room, most in limits.items()
                if most - self._occupancy.number_in(room) <= max(RESERVE, most // 2)
            }
            if not tight:
                self._occupancy.take(place)
        return tight

    def take(self, place: Place) -> None:
        with self._lock:
            self._occupancy.take(place)

    def _look(self) -> None:
        read_at = time.monotonic()
        self._occupancy = read_occupancy()
        self._read_at = read_at
        if Execution.objects.queued().exists():
            expected.suspect()


remembered = _Remembered()


def forget_admissions() -> None:
    remembered.forget()
    expected.forget()


def _check_queue(caller: Caller) -> None:
    """Raises Busy where nobody else may wait, or the caller may not; its first call always may.

    So no caller can fill the queue for the others. A bound of 0 is none that may wait.
    """
    most = settings.CATALOGUE["max_queued_executions"]
    most_of_one = settings.CATALOGUE["max_queued_per_caller"]
    queued = Execution.objects.queued().order_by()
    number = queued.aggregate(all=Count("pk"), own=Count("pk", filter=Q(caller=caller.key)))
    if not most or not most_of_one:
        raise Busy("all places are taken, and no queue is allowed.", retry_after=_pause())
    if number["own"] >= most_of_one:
        why = f"all places are taken, and your share of the queue is full, with {number['own']} waiting."
        raise Busy(why, retry_after=_pause(caller=caller.key))
    if number["own"] and number["all"] >= most:
        why = f"all places are taken, and the queue is full, with {number['all']} waiting."
        raise Busy(why, retry_after=_pause())


def _pause(**whose: str) -> int:
    """Seconds until one more has left the queue, at the pace of the last minute; a minute if none has."""
    came_through = Execution.objects.filter(admitted_at__gt=F("created_at"), **whose)
    lately = came_through.filter(admitted_at__gte=timezone.now() - MINUTE).count()
    return math.ceil(MINUTE.total_seconds() / max(lately, 1))
