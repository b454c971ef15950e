"""Celery's beat, which sends tasks by name: workers and web processes do not import it."""

from time import monotonic
from typing import Any

from celery.apps.beat import Beat
from celery.beat import PersistentScheduler
from celery.platforms import signals
from loguru import logger

LEAP_SECONDS = 60.0  # By which the clock may be set without a word


class Scheduler(PersistentScheduler):
    _apart: float | None = None  # The clock and the one that is never set, at the last tick
    _failing_since: float | None = None

    def tick(self, *arguments: Any, **named: Any) -> Any:
        """Celery's own would send nothing until the time of the last ticks is reached again, and nothing
        would say why runs time out all together."""
        now = self.app.now()
        apart = now.timestamp() - monotonic()
        leap, self._apart = apart - (self._apart or apart), apart
        if leap > LEAP_SECONDS:
            logger.warning(
                "The clock went forward by {:.0f} s at once: it was set, or this machine slept. What is due "
                "by the new time happens now, such as timeouts of runs",
                leap,
            )
        ahead = [one for one in self.schedule.values() if one.last_run_at and one.last_run_at > now]
        for entry in ahead:
            entry.last_run_at = now
        if ahead:
            logger.warning("The clock was set back; beat goes on by the present time")
            self._heap = None
        return super().tick(*arguments, **named)

    def apply_async(self, *arguments: Any, **named: Any) -> Any:
        """Celery logs each tick that the broker does not take, but not when it takes them again."""
        try:
            sent = super().apply_async(*arguments, **named)
        except Exception:
            self._failing_since = self._failing_since or monotonic()
            raise
        if self._failing_since is not None:
            seconds, self._failing_since = monotonic() - self._failing_since, None
            logger.warning("The broker takes the schedule's ticks again; it took none for {:.0f} s", seconds)
        return sent


class Schedule(Beat):
    def init_loader(self) -> None:
        """Celery's own imports all tasks and their models."""
        assert self.app is not None
        self.app.finalize()

    def install_sync_handler(self, service: Any) -> None:
        """Stops between two ticks. Celery's own handler closes the connection immediately, even in the middle
        of a message to RabbitMQ, and then waits for a lock that it holds itself."""

        def end(*_: object) -> None:
            service.stop()

        signals.update(SIGTERM=end, SIGINT=end)
