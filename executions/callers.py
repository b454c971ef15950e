from dataclasses import dataclass

from catalogue.reservations import Bounds, Person


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    key: str  # What is counted, e.g. `token:7`; calls with one key share the rate in all processes
    per_minute: int
    at_once: int  # So many calls pass without a pause between them
    whose: str  # For the refusal, e.g. `this token`


def rate_of(key: str, per_minute: int | None, at_once: int | None, *, whose: str) -> Rate | None:
    """None without a limit; where nothing is said, ten seconds' worth of calls pass at once."""
    if not per_minute:
        return None
    return Rate(key=key, per_minute=per_minute, at_once=at_once or -(-per_minute // 6), whose=whose)


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    key: str  # Stable; executions are kept under it, e.g. `token:7` or `user:1`.
    name: str
    sees_everything: bool = False  # Administrators see every execution; others only their own
    toolset: str | None = None  # Slug of the toolset that limits what is visible; None: no limit
    person: Person | None = None  # To whom reservations apply; None: superusers, and tokens without an owner
    user_id: int | None = None  # The user that it acts for; None: none is known
    rates: tuple[Rate, ...] = ()  # Of the token

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.toolset, self.person)

    @property
    def counted_as(self) -> str:
        """The key under which the calls of all tokens of one user count."""
        return self.key if self.user_id is None else f"user:{self.user_id}"
