"""To which source of HTTP tools a declared tool belongs: one that there is, or a new one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from catalogue.http_tools.configs import KIND, authentication_of
from catalogue.http_tools.matching import (
    SubmittedTool,
    authenticates_alike,
    base_url_of,
    fits,
    identity,
    other_secrets,
    secrets_of,
)
from catalogue.http_tools.refusals import ToolFault, faults_of
from catalogue.models import Source, Workflow
from connectors.http_tools.checks import InvalidTool, connection_of
from connectors.http_tools.tool import ToolConfig

LONGEST_HOST = 60
"""Of a source's name, which may have 64 characters, so that a number can follow."""

SAY_WHICH = 'Name one: send {"source": ..., "tools": [...]}, or use `add_tools --source`.'


@dataclass(kw_only=True, slots=True)
class Home:
    """A source with the submitted tools that belong to it."""

    source: Source | None
    """None while there is none yet."""
    name: str
    base_url: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Of a new source: how it authenticates."""
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Of a new source."""
    positions: list[int] = field(default_factory=list)
    """Of its tools in the submission."""


class _Misplaced(Exception):
    """The tool belongs nowhere."""

    def __init__(self, fault: ToolFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def find_homes(tools: Sequence[ToolConfig], *, source: str | None) -> tuple[list[Home], list[ToolFault]]:
    """The sources of the tools, and what is wrong with those that have none.

    A tool without a named source belongs to one whose address its endpoint begins with, and which
    authenticates in the same way: preferably where a tool of its name is already. Its secrets are those of
    that source or left out. Rows of sources are locked; nothing is written.
    """
    sources = list(Source.objects.select_for_update().filter(kind=KIND).order_by("name"))
    placed, faults = _read(tools)
    places = _NamedSource(source, sources) if source is not None else _Addresses(sources, placed)
    for one in placed:
        try:
            places.take(one)
        except _Misplaced as misplaced:
            faults.append(misplaced.fault)
    return places.homes, faults


def _read(tools: Sequence[ToolConfig]) -> tuple[list[SubmittedTool], list[ToolFault]]:
    placed: list[SubmittedTool] = []
    faults: list[ToolFault] = []
    for position, tool in enumerate(tools):
        try:
            placed.append(SubmittedTool(position=position, tool=tool, connection=connection_of(tool)))
        except InvalidTool as invalid:
            faults += faults_of(invalid, position)
    return placed, faults


class _Addresses:
    """Homes by where the tools' endpoints point."""

    def __init__(self, sources: list[Source], placed: list[SubmittedTool]) -> None:
        self._sources = sources
        self._known = set(
            Workflow.objects.filter(
                source__in=sources, upstream_id__in={one.tool.name for one in placed}
            ).values_list("source_id", "upstream_id")
        )
        self._homes: dict[Any, Home] = {}
        self._names = set(Source.objects.values_list("name", flat=True))

    @property
    def homes(self) -> list[Home]:
        return [home for home in self._homes.values() if home.positions]

    def take(self, one: SubmittedTool) -> None:
        found = self._find(one)
        home = self._homes.setdefault(found.pk, _home_of(found)) if found else self._new_home(one)
        home.positions.append(one.position)

    def _find(self, one: SubmittedTool) -> Source | None:
        """Raises _Misplaced where its secrets or more than one source stand in the way."""
        fitting = [source for source in self._sources if fits(source, one)]
        if fitting and one.connection.secrets:
            owners = [source for source in fitting if secrets_of(source) == one.connection.secrets]
            if not owners:
                raise _Misplaced(one.fault_of_secret(other_secrets(fitting[0])))
            fitting = owners
        known = [source for source in fitting if (source.pk, one.tool.name) in self._known]
        closest = max((len(base_url_of(source)) for source in fitting), default=0)
        best = known or [source for source in fitting if len(base_url_of(source)) == closest]
        if len(best) > 1:
            names = ", ".join(source.name for source in best)
            told = f"It may belong to several sources ({names}). {SAY_WHICH}"
            raise _Misplaced(one.fault(told))
        return best[0] if best else None

    def _new_home(self, one: SubmittedTool) -> Home:
        key = (one.connection.base_url, identity(one.authentication))
        if key not in self._homes:
            self._homes[key] = _new_home(self._free_name(one.connection.base_url), one)
        _add_secrets(self._homes[key], one)
        return self._homes[key]

    def _free_name(self, base_url: str) -> str:
        host = re.sub(r"[^A-Za-z0-9_.-]+", "-", urlsplit(base_url).hostname or "")
        stem, number = host.lstrip("-_.")[:LONGEST_HOST] or "api", 2
        name = stem
        while name in self._names:
            name, number = f"{stem}-{number}", number + 1
        self._names.add(name)
        return name


class _NamedSource:
    """The one home that the submission names."""

    def __init__(self, name: str, sources: list[Source]) -> None:
        self._name = name
        self._source = next((source for source in sources if source.name == name), None)
        self._home = _home_of(self._source) if self._source else None
        self._taken = not self._source and Source.objects.filter(name=name).exists()

    @property
    def homes(self) -> list[Home]:
        return [self._home] if self._home and self._home.positions else []

    def take(self, one: SubmittedTool) -> None:
        if self._taken:
            told = (
                f"Source {self._name} is of another kind: HTTP tools belong to a source of the kind {KIND}."
            )
            raise _Misplaced(ToolFault(path="/source", message=told))
        self._home = self._home or _new_home(self._name, one)
        if self._source is not None:
            _check_belongs(self._source, one)
        else:
            _join(self._home, one)
        self._home.positions.append(one.position)


def _check_belongs(source: Source, one: SubmittedTool) -> None:
    """That it is below the source's base URL is for who reads the endpoint."""
    if one.says_who_we_are and not authenticates_alike(source, one):
        told = f"Source {source.name} authenticates in another way; leave this out to use its own."
        raise _Misplaced(one.fault(told, "/api/authentication"))
    if one.connection.secrets and one.connection.secrets != secrets_of(source):
        raise _Misplaced(one.fault_of_secret(other_secrets(source)))


def _join(home: Home, one: SubmittedTool) -> None:
    """A new source is one API with one way to authenticate."""
    if one.connection.base_url != home.base_url:
        told = f"A source is one API: this tool is not at {home.base_url}, where the first one is."
        raise _Misplaced(one.fault(told, "/api/endpoint"))
    if not one.says_who_we_are:
        return
    if identity(authentication_of(home.settings)) != identity(one.authentication):
        told = "A source authenticates in one way: this tool's is another than the first one's."
        raise _Misplaced(one.fault(told, "/api/authentication"))
    _add_secrets(home, one)


def _home_of(source: Source) -> Home:
    return Home(source=source, name=source.name, base_url=base_url_of(source))


def _new_home(name: str, one: SubmittedTool) -> Home:
    settings = {key: value for key, value in one.connection.settings.items() if key != "base_url"}
    return Home(source=None, name=name, base_url=one.connection.base_url, settings=settings)


def _add_secrets(home: Home, one: SubmittedTool) -> None:
    """Tools of one source may leave them to each other, but not differ."""
    given = one.connection.secrets
    if home.secrets and given and home.secrets != given:
        told = "An earlier tool of this submission has another one for the same API: name a source for each."
        raise _Misplaced(one.fault_of_secret(told))
    home.secrets = home.secrets or given
