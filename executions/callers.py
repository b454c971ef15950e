"""On whose behalf something is done."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Whoever knocks at one of the doors, after they were let in."""

    key: str
    """Stable identity that executions are kept under, e.g. `token:7` or `user:1`."""
    name: str
    """For people: the token's or the user's name."""
    sees_everything: bool = False
    """Administrators see every execution; others only those that they started."""
    toolset: str | None = None
    """The slug of the toolset that they come through: they see and run nothing else. None: no bounds."""
