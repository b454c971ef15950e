"""Connectors by the kind of source; other packages add theirs through an entry point."""

import inspect
from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from loguru import logger
from pydantic import BaseModel

from connectors.errors import Misconfigured
from connectors.network.redaction import first_line
from connectors.protocol import Capabilities, Connector

ENTRY_POINT_GROUP = "workflow_catalogue.connectors"

BUILT_IN = {
    "simplified": "connectors.simplified:SimplifiedConnector",
    "temporal": "connectors.temporal.connector:TemporalConnector",
    "mcp": "connectors.upstream_mcp.connector:McpConnector",
    "prefect": "connectors.prefect:PrefectConnector",
    "restate": "connectors.restate:RestateConnector",
    "http_job": "connectors.http_job.connector:HttpJobConnector",
    "http": "connectors.http_tools.connector:HttpConnector",
}
METHODS = ("check", "start", "poll", "cancel", "aclose")


def connector_kinds() -> list[str]:
    """All kinds, sorted, including those whose connector cannot be used."""
    return sorted({*BUILT_IN, *_added_kinds()})


def usable_connectors() -> dict[str, type[Connector]]:
    found = {kind: _find(kind) for kind in connector_kinds()}
    return {kind: connector for kind, connector in found.items() if not isinstance(connector, str)}


def connector_problems() -> list[str]:
    """Returns why connectors of other packages cannot be used, a sentence each that names the package."""
    clashes = [
        f"{_package(point)} provides a connector for the kind {point.name}, which is built in: "
        "the built-in connector is used. The package must choose another name."
        for point in _added()
        if point.name in BUILT_IN
    ]
    return clashes + [problem for kind in _added_kinds() if isinstance(problem := _find(kind), str)]


def connector_class(kind: str) -> type[Connector]:
    """Raises Misconfigured with the reason for a kind without a usable connector."""
    found = _find(kind)
    if isinstance(found, str):
        raise Misconfigured(found)
    return found


def forget_connectors() -> None:
    """Clears the caches, for tests that install connectors."""
    _usable.clear()
    _added.cache_clear()
    _tell.cache_clear()


_usable: dict[str, type[Connector]] = {}
"""Failures are not remembered: the next import may succeed, such as when there are free file descriptors."""


def _find(kind: str) -> type[Connector] | str:
    """The connector, or why it cannot be used, which is logged once."""
    if kind in _usable:
        return _usable[kind]
    built_in = [EntryPoint(kind, path, ENTRY_POINT_GROUP)] if (path := BUILT_IN.get(kind)) else []
    points = built_in or [point for point in _added() if point.name == kind]
    if not points:
        return f"Unknown kind of source {kind!r}; known kinds: {', '.join(connector_kinds())}."
    if len(points) > 1:
        packages = " and ".join(map(_package, points))
        found: type[Connector] | str = (
            f"Several packages provide a connector for the kind {kind}: {packages}. Uninstall all but one."
        )
    else:
        found = _load(points[0])
    if isinstance(found, str):
        _tell(found)
    else:
        _usable[kind] = found
    return found


@cache
def _tell(problem: str) -> None:
    logger.error("{}", problem)


def _load(point: EntryPoint) -> type[Connector] | str:
    unusable = f"The connector for the kind {point.name} from {_package(point)} cannot be used"
    try:
        connector = point.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - another package's code may raise anything
        logger.opt(exception=error).debug("{}", unusable)
        return f"{unusable}: importing it failed with {type(error).__name__}: {error}"
    objection = objection_to(connector, point.name)
    return f"{unusable}: {objection}" if objection else connector


@cache  # Looking through all installed packages takes 10 ms
def _added() -> Sequence[EntryPoint]:
    return sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value))


def _added_kinds() -> list[str]:
    return sorted({point.name for point in _added()} - set(BUILT_IN))


def _package(point: EntryPoint) -> str:
    """`its-package 1.0 (its.module:Connector)`."""
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "this product"
    return f"{package} ({point.value})"


def objection_to(connector: Any, kind: str) -> str:
    """Returns what the class lacks of `connectors.protocol.Connector`, in a sentence; empty: nothing."""
    if not inspect.isclass(connector):
        return f"{connector!r} is not a class."
    config = getattr(connector, "Config", None)
    if not (inspect.isclass(config) and issubclass(config, BaseModel)):
        return "its class has no Config that is a pydantic model."
    if getattr(connector, "kind", None) != kind:
        return f"its class has the kind {getattr(connector, 'kind', None)!r}."
    if not isinstance(getattr(connector, "label", None), str):
        return "its class has no label."
    return _missing_members(connector) or _wrong_members(connector) or _unusable_settings(config, kind)


def _unusable_settings(config: type[BaseModel], kind: str) -> str:
    """One kind without a schema or defaults would fail the list of all kinds."""
    if kind in BUILT_IN:  # The schemas of all of them take 100 ms
        return ""
    try:
        config.model_json_schema()
        for info in config.model_fields.values():
            info.get_default(call_default_factory=True, validated_data={})
    except Exception as error:  # noqa: BLE001 - another package's code may raise anything
        reason = f"{type(error).__name__}: {first_line(str(error))}"
        return f"its Config has no JSON Schema or default values: {reason}"
    return ""


def _wrong_members(connector: Any) -> str:
    if inspect.iscoroutinefunction(connector.discover) or inspect.isgeneratorfunction(connector.discover):
        return "its discover() is not an async generator: it must be async and yield each workflow."
    found = inspect.getattr_static(connector, "capabilities")
    if inspect.isfunction(found) or not (isinstance(found, Capabilities) or hasattr(found, "__get__")):
        return f"its capabilities are a {type(found).__name__}: they must be Capabilities or a property."
    return ""


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
