"""The kinds of engines that this installation can connect, for whoever has to choose one."""

import inspect
from dataclasses import dataclass, field
from typing import Any

from catalogue.engine_settings import settings_of
from connectors.errors import Misconfigured
from connectors.protocol import Connector
from connectors.registry import connector_class, connector_kinds


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineKind:
    """A kind that is declared, whether its connector can be used or not."""

    kind: str
    label: str = ""
    summary: str = ""
    """A sentence for who chooses."""
    config_schema: dict[str, Any] | None = None
    """JSON Schema of the settings, secrets among them; None where there is no connector to ask."""
    secret_settings: list[str] = field(default_factory=list)
    problem: str = ""
    """Why sources of this kind cannot be made or used; empty where they can."""


def engine_kinds() -> list[EngineKind]:
    return [engine_kind(kind) for kind in connector_kinds()]


def engine_kind(kind: str) -> EngineKind:
    try:
        connector = connector_class(kind)
    except Misconfigured as error:
        return EngineKind(kind=kind, problem=error.message)
    return EngineKind(
        kind=kind,
        label=connector.label,
        summary=summary_of(connector),
        config_schema=connector.Config.model_json_schema(),
        secret_settings=[setting.name for setting in settings_of(kind).values() if setting.secret],
    )


def starts_by_metadata(kind: str) -> bool:
    """Whether a workflow's metadata says where or how it is run, which its connector may deny."""
    try:
        return bool(getattr(connector_class(kind), "starts_by_metadata", True))
    except Misconfigured:
        return True


def summary_of(connector: type[Connector]) -> str:
    """What a connector says of itself in the first paragraph of its docstring."""
    paragraph, _, _ = (inspect.getdoc(connector) or "").partition("\n\n")
    return " ".join(paragraph.split())
