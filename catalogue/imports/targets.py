"""The source that a declared HTTP tool belongs to: an existing one or a new one."""

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from catalogue.http_tools import KIND, SECRET_OF, authentication_of
from catalogue.imports.pipeline import ToolFault, faults_of, stored_secrets
from catalogue.models import Source, Workflow
from connectors.http_tools.checks import Connection, InvalidTool, connection_of
from connectors.http_tools.tool import Authentication, Endpoint, ToolConfig

LONGEST_HOST = 60
"""Leaves room for a number in a source's name of at most 64 characters."""

SAY_WHICH = 'Name one: send {"source": ..., "tools": [...]}, or use `add_tools --source`.'


@dataclass(kw_only=True, slots=True)
class TargetSource:
    source: Source | None
    """None for a new source."""
    name: str
    base_url: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Authentication of a new source."""
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    positions: list[int] = field(default_factory=list)
    """Indexes of its tools in the submission."""


Identity = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmittedTool:
    position: int
    """Index in the submission."""
    tool: ToolConfig
    connection: Connection

    @property
    def authentication(self) -> Authentication:
        return self.tool.api.authentication

    @property
    def names_authentication(self) -> bool:
        return "authentication" in self.tool.api.model_fields_set

    def fault(self, message: str, path: str = "") -> ToolFault:
        return ToolFault(position=self.position, path=path, message=message)

    def fault_of_secret(self, message: str) -> ToolFault:
        return self.fault(message, f"/api/authentication/{SECRET_OF[self.authentication.type]}")


class _NoTarget(Exception):
    """No source takes the tool."""

    def __init__(self, fault: ToolFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def find_targets(
    tools: Sequence[ToolConfig], *, source: str | None
) -> tuple[list[TargetSource], list[ToolFault]]:
    """Find or plan the source of each tool; faults are returned for the tools without one.

    Without a named source, a tool goes to the source whose address its endpoint begins with and that
    authenticates alike; one that already has a tool of its name comes first. Its secrets are those of the
    source, or left out. Locks the rows of sources and writes nothing.
    """
    sources = list(Source.objects.select_for_update().filter(kind=KIND).order_by("name"))
    placed, faults = _read_connections(tools)
    places = _NamedTarget(source, sources) if source is not None else _TargetsByAddress(sources, placed)
    for one in placed:
        try:
            places.take(one)
        except _NoTarget as error:
            faults.append(error.fault)
    return places.targets, faults


def _read_connections(tools: Sequence[ToolConfig]) -> tuple[list[SubmittedTool], list[ToolFault]]:
    placed: list[SubmittedTool] = []
    faults: list[ToolFault] = []
    for position, tool in enumerate(tools):
        try:
            placed.append(SubmittedTool(position=position, tool=tool, connection=connection_of(tool)))
        except InvalidTool as invalid:
            faults += faults_of(invalid, position)
    return placed, faults


class _TargetsByAddress:
    """Sources by the addresses and the authentication of the tools."""

    def __init__(self, sources: list[Source], placed: list[SubmittedTool]) -> None:
        self._sources = sources
        self._known = set(
            Workflow.objects.filter(
                source__in=sources, upstream_id__in={one.tool.name for one in placed}
            ).values_list("source_id", "upstream_id")
        )
        self._targets: dict[Any, TargetSource] = {}
        self._names = set(Source.objects.values_list("name", flat=True))

    @property
    def targets(self) -> list[TargetSource]:
        return [target for target in self._targets.values() if target.positions]

    def take(self, submitted: SubmittedTool) -> None:
        found = self._find(submitted)
        target = (
            self._targets.setdefault(found.pk, _target_of(found)) if found else self._new_target(submitted)
        )
        target.positions.append(submitted.position)

    def _find(self, submitted: SubmittedTool) -> Source | None:
        """Raises _NoTarget if its secrets differ or several sources fit."""
        fitting = [source for source in self._sources if fits(source, submitted)]
        if fitting and submitted.connection.secrets:
            owners = [source for source in fitting if _own_secrets(source) == submitted.connection.secrets]
            if not owners:
                raise _NoTarget(submitted.fault_of_secret(other_secrets(fitting[0])))
            fitting = owners
        known = [source for source in fitting if (source.pk, submitted.tool.name) in self._known]
        closest = max((len(address_of(source)) for source in fitting), default=0)
        best = known or [source for source in fitting if len(address_of(source)) == closest]
        if len(best) > 1:
            names = ", ".join(source.name for source in best)
            message = f"It may belong to several sources ({names}). {SAY_WHICH}"
            raise _NoTarget(submitted.fault(message))
        return best[0] if best else None

    def _new_target(self, submitted: SubmittedTool) -> TargetSource:
        key = (submitted.connection.base_url, identity(submitted.authentication))
        if key not in self._targets:
            name = free_source_name(submitted.connection.base_url, self._names)
            self._names.add(name)
            self._targets[key] = _new_target(name, submitted)
        _add_secrets(self._targets[key], submitted)
        return self._targets[key]


class _NamedTarget:
    """The one source that the submission names."""

    def __init__(self, name: str, sources: list[Source]) -> None:
        self._name = name
        self._source = next((source for source in sources if source.name == name), None)
        self._target = _target_of(self._source) if self._source else None
        self._taken = not self._source and Source.objects.filter(name=name).exists()

    @property
    def targets(self) -> list[TargetSource]:
        return [self._target] if self._target and self._target.positions else []

    def take(self, submitted: SubmittedTool) -> None:
        if self._taken:
            message = (
                f"Source {self._name} is of another kind: HTTP tools belong to a source of the kind {KIND}."
            )
            raise _NoTarget(ToolFault(path="/source", message=message))
        self._target = self._target or _new_target(self._name, submitted)
        if self._source is not None:
            _check_belongs(self._source, submitted)
        else:
            _join(self._target, submitted)
        self._target.positions.append(submitted.position)


def _check_belongs(source: Source, submitted: SubmittedTool) -> None:
    """Reading the endpoint checks the base URL."""
    if submitted.names_authentication and not authenticates_alike(source, submitted):
        message = f"Source {source.name} authenticates in another way; leave this out to use its own."
        raise _NoTarget(submitted.fault(message, "/api/authentication"))
    if submitted.connection.secrets and submitted.connection.secrets != _own_secrets(source):
        raise _NoTarget(submitted.fault_of_secret(other_secrets(source)))


def _join(target: TargetSource, submitted: SubmittedTool) -> None:
    """All tools of a new source share its API and its authentication."""
    if submitted.connection.base_url != target.base_url:
        message = f"A source is one API: this tool is not at {target.base_url}, where the first one is."
        raise _NoTarget(submitted.fault(message, "/api/endpoint"))
    if not submitted.names_authentication:
        return
    if identity(authentication_of(target.settings)) != identity(submitted.authentication):
        message = "A source authenticates in one way: this tool's is another than the first one's."
        raise _NoTarget(submitted.fault(message, "/api/authentication"))
    _add_secrets(target, submitted)


def _target_of(source: Source) -> TargetSource:
    return TargetSource(source=source, name=source.name, base_url=address_of(source))


def _new_target(name: str, submitted: SubmittedTool) -> TargetSource:
    settings = {key: value for key, value in submitted.connection.settings.items() if key != "base_url"}
    return TargetSource(source=None, name=name, base_url=submitted.connection.base_url, settings=settings)


def _add_secrets(target: TargetSource, submitted: SubmittedTool) -> None:
    """Tools of one source may leave its secrets out, but not give different ones."""
    given = submitted.connection.secrets
    if target.secrets and given and target.secrets != given:
        message = (
            "An earlier tool of this submission has another one for the same API: name a source for each."
        )
        raise _NoTarget(submitted.fault_of_secret(message))
    target.secrets = target.secrets or given


def fits(source: Source, submitted: SubmittedTool) -> bool:
    return _is_below(source, submitted) and authenticates_alike(source, submitted)


def authenticates_alike(source: Source, submitted: SubmittedTool) -> bool:
    return identity(authentication_of(source.config)) == identity(submitted.authentication)


def identity(authentication: Authentication) -> Identity:
    """The authentication without its secret."""
    claims = authentication.model_dump(by_alias=True, exclude={SECRET_OF.get(authentication.type, "")})
    if claims.get("in") == "header":
        claims["name"] = claims["name"].lower()
    if "token_url" in claims:
        claims["token_url"] = claims["token_url"].strip().rstrip("/")
    return tuple(sorted(claims.items()))


def address_of(source: Source) -> str:
    return str(source.config.get("base_url", ""))


def _own_secrets(source: Source) -> dict[str, str]:
    return {name: secret for name, secret in stored_secrets(source).items() if secret}


def other_secrets(source: Source) -> str:
    return (
        f"Source {source.name} of this API has another one, which its other tools use. Leave it out to use "
        'that, change it at the source itself, or name a new source: {"source": ..., "tools": [...]}, or '
        "`add_tools --source`."
    )


def _is_below(source: Source, submitted: SubmittedTool) -> bool:
    try:
        Endpoint.of(submitted.tool.api.endpoint).path_below(address_of(source))
    except ValueError:
        return False
    return True


def free_source_name(base_url: str, taken: Set[str]) -> str:
    """The API's host, numbered if another source has that name."""
    host = re.sub(r"[^A-Za-z0-9_.-]+", "-", urlsplit(base_url).hostname or "")
    stem, number = host.lstrip("-_.")[:LONGEST_HOST] or "api", 2
    name = stem
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name
