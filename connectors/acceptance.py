"""Whether a class that another package declares as a connector can be one."""

import inspect
from typing import Any

from pydantic import BaseModel

METHODS = ("check", "start", "poll", "cancel", "aclose")
"""What has to be awaited of every connector."""


def objection_to(connector: Any, kind: str) -> str:
    """What it lacks of `connectors.protocol.Connector`, in a sentence; empty for a connector."""
    if not inspect.isclass(connector):
        return f"{connector!r} is no class."
    config = getattr(connector, "Config", None)
    if not (inspect.isclass(config) and issubclass(config, BaseModel)):
        return "its class has no Config that is a pydantic model."
    if getattr(connector, "kind", None) != kind:
        return f"its class says that its kind is {getattr(connector, 'kind', None)!r}."
    if not isinstance(getattr(connector, "label", None), str):
        return "its class has no label."
    return _missing_members(connector)


def _missing_members(connector: Any) -> str:
    missing = [name for name in METHODS if not inspect.iscoroutinefunction(getattr(connector, name, None))]
    missing = [f"async {name}()" for name in missing]
    missing += [f"{name}" for name in ("discover", "capabilities") if not hasattr(connector, name)]
    if missing:
        return f"its class lacks {', '.join(missing)}."
    accepted = inspect.signature(connector.start).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        lacking = [name for name in ("key", "report") if name not in accepted]
        if lacking:
            return f"its start() does not take {' and '.join(lacking)}."
    return ""
