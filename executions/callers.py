from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    key: str  # Stable; executions are kept under it, e.g. `token:7` or `user:1`.
    name: str
    sees_everything: bool = False  # Administrators see every execution; others only their own
    toolset: str | None = None  # Slug of the toolset that limits what is visible; None: no limit
