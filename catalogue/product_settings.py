"""Settings that administrators change at run time: discovery, timeouts, limits, retries. `settings.CATALOGUE`
has the environment's values, overridden by those of one row. A process reads the row at most once in
`MAX_AGE_SECONDS`, when a setting is read outside an event loop; on an event loop, the last values apply.
Every call and every tick of a worker reads settings outside the loop."""

import asyncio
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError, transaction
from django.db.models import Q
from django.utils import timezone
from loguru import logger

from catalogue.models import ProductSettings, Source

MAX_AGE_SECONDS = 1.0


class Origin(StrEnum):
    HERE = "changed here"
    ENVIRONMENT = "environment"
    DEFAULT = "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveSetting:
    name: str
    variable: str
    group: str
    type: type[bool] | type[int] | type[float]
    description: str
    minimum: float | None
    above: float | None  # An exclusive minimum
    maximum: float | None
    is_given: bool

    @property
    def default(self) -> Any:
        return settings.CATALOGUE.given(self.name)  # type: ignore[attr-defined]

    @property
    def value(self) -> Any:
        return getattr(settings.CATALOGUE, self.name)

    @property
    def origin(self) -> Origin:
        if self.name in overrides():
            return Origin.HERE
        return Origin.ENVIRONMENT if self.is_given else Origin.DEFAULT

    def problem_with(self, value: Any) -> str:
        """Empty for a valid value."""
        if self.type is bool:
            return "" if isinstance(value, bool) else "This must be true or false."
        if isinstance(value, bool) or not isinstance(value, int if self.type is int else int | float):
            return "This must be a whole number." if self.type is int else "This must be a number."
        if not math.isfinite(value):
            return "This must be a number."
        if self.minimum is not None and value < self.minimum:
            return f"This must be at least {self.minimum:g}."
        if self.above is not None and value <= self.above:
            return f"This must be greater than {self.above:g}."
        if self.maximum is not None and value > self.maximum:
            return f"This must be at most {self.maximum:,g}."
        return ""


class InvalidSettings(Exception):
    """Nothing was changed; `problems` has a sentence for each refused setting."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(" ".join(f"{name}: {problem}" for name, problem in problems.items()))
        self.problems = problems


def live_settings() -> dict[str, LiveSetting]:
    """Returns them by name, in the order of the fields."""
    return {name: LiveSetting(**setting) for name, setting in settings.LIVE_SETTINGS.items()}


def settings_row() -> ProductSettings:
    return ProductSettings.objects.get_or_create(pk=ProductSettings.ONLY)[0]


def change_settings(changes: Mapping[str, Any], *, by: str) -> list[str]:
    """None restores the environment's value. Returns a phrase for each change. Raises InvalidSettings."""
    known = live_settings()
    problems = {
        name: problem
        for name, value in changes.items()
        if value is not None and (problem := known[name].problem_with(value))
    }
    if problems:
        raise InvalidSettings(problems)
    with transaction.atomic():
        row, _ = ProductSettings.objects.select_for_update().get_or_create(pk=ProductSettings.ONLY)
        before = valid_overrides(row.overrides)
        after = {name: value for name, value in {**before, **changes}.items() if value is not None}
        phrases = [
            _describe(known[name], before, after) for name in known if before.get(name) != after.get(name)
        ]
        if not phrases:
            return []
        row.overrides, row.changed_at, row.changed_by = after, timezone.now(), by[:255]
        row.save()
        if before.get("discovery_interval") != after.get("discovery_interval"):
            _reschedule_listings(after.get("discovery_interval", known["discovery_interval"].default))
        transaction.on_commit(lambda: remembered.keep(after))
    logger.bind(by=by).info("Settings changed: {}", "; ".join(phrases))
    return phrases


def _describe(setting: LiveSetting, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    def shown(overrides: Mapping[str, Any]) -> str:
        name = setting.name
        return str(overrides[name]) if name in overrides else f"{setting.default} (environment)"

    return f"{setting.name} from {shown(before)} to {shown(after)}"


def _reschedule_listings(interval: int) -> None:
    """Reschedules sources that have no interval, except those that are already due."""
    following = Source.objects.filter(refresh_interval=None)
    if not interval:
        following.update(next_refresh_at=None)
        return
    at = timezone.now() + timedelta(seconds=interval)
    following.filter(Q(next_refresh_at=None) | Q(next_refresh_at__gt=at)).update(next_refresh_at=at)


def valid_overrides(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Omits settings and values of other versions of the product."""
    known = live_settings()
    return {
        name: value for name, value in stored.items() if name in known and not known[name].problem_with(value)
    }


class OverridesCache:
    def __init__(self) -> None:
        self._reading = threading.Lock()
        self.known: Mapping[str, Any] = {}
        self.known_until = -math.inf

    def current(self) -> Mapping[str, Any]:
        is_old = time.monotonic() > self.known_until
        # Do not wait for another thread that is already reading.
        if is_old and _may_wait_for_database() and self._reading.acquire(blocking=False):
            try:
                self._read()
            finally:
                self._reading.release()
        return self.known

    def _read(self) -> None:
        read_at = time.monotonic()
        try:
            row = ProductSettings.objects.filter(pk=ProductSettings.ONLY).first()
        except (DatabaseError, InterfaceError) as error:
            logger.debug("The settings cannot be read; the last values still apply: {}", error)
        else:
            self.known = {} if row is None else valid_overrides(row.overrides)
        self.known_until = read_at + MAX_AGE_SECONDS

    def keep(self, overrides: Mapping[str, Any], *, seconds: float = 0.0) -> None:
        self.known = overrides
        self.known_until = time.monotonic() + seconds + MAX_AGE_SECONDS


def _may_wait_for_database() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return not transaction.get_connection().needs_rollback
    return False


remembered = OverridesCache()
overrides = remembered.current
keep_settings = remembered.keep
