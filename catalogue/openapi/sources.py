"""Which source an OpenAPI document's tools belong to: one that there is, or a new one."""

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from catalogue.connections import find_setting_problems, secret_fields
from catalogue.declared_workflows import ImportRefused
from catalogue.http_tools.configs import KIND
from catalogue.models import Source
from catalogue.secrets import CredentialsUnreadable
from connectors.http_tools.config import HttpConfig
from connectors.http_tools.openapi.document import Document, UnusableDocument
from connectors.http_tools.openapi.security import Settings, settings_for
from connectors.http_tools.openapi.servers import base_url_of

LONGEST_NAME = 64
TELLING = ("authentication", "api_key_in", "api_key_name")
"""The settings that say how a source authenticates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    source: Source | None
    """None while there is none yet."""
    name: str
    base_url: str
    config: dict[str, Any]
    secrets: dict[str, str] = field(repr=False)

    @property
    def authentication(self) -> Settings:
        """How the source authenticates, with what is usual written out."""
        fields = HttpConfig.model_fields
        told = {name: str(self.config.get(name, fields[name].default)) for name in TELLING}
        return told if told["authentication"] == "api_key" else {"authentication": told["authentication"]}

    @property
    def lacking(self) -> str:
        """What calls cannot do without and nobody has entered; empty: nothing."""
        settings = self.config | self.secrets
        if find_setting_problems(KIND, settings):
            return ""
        return HttpConfig.model_validate(settings).lacking


def find_target(
    document: Document, *, source: str, base_url: str, settings: dict[str, Any], secrets: dict[str, str]
) -> Target:
    """Raises ImportRefused or UnusableDocument. Nothing is written."""
    known = Source.objects.filter(name=source).first() if source else None
    if known is None:
        wanted = base_url_of(document, base_url)
        known = None if source else _source_at(wanted)
        if known is None:
            return _new_target(document, source or _free_name(wanted), wanted, settings, secrets)
    return _known_target(document, known, base_url, settings, secrets)


def _new_target(
    document: Document, name: str, base_url: str, settings: dict[str, Any], secrets: dict[str, str]
) -> Target:
    _check_names(settings, secrets)
    said = {} if "authentication" in settings else settings_for(document, frozenset(secrets))
    config = {"base_url": base_url} | said | settings
    problems = find_setting_problems(KIND, config | secrets)
    if problems:
        raise ImportRefused([f"{name}: {message}" for name, told in problems.items() for message in told])
    return Target(source=None, name=name, base_url=base_url, config=config, secrets=secrets)


def _check_names(settings: dict[str, Any], secrets: dict[str, str]) -> None:
    known = set(secret_fields(KIND))
    if unknown := sorted(secrets.keys() - known):
        raise ImportRefused([f"Unknown secrets: {', '.join(unknown)}; there are {', '.join(sorted(known))}."])
    if misplaced := sorted(settings.keys() & known):
        raise ImportRefused([f"{', '.join(misplaced)}: a secret; give it as one, so that it is encrypted."])
    if "base_url" in settings:
        raise ImportRefused(["The base URL is given by itself, not among the settings."])


def _known_target(
    document: Document, source: Source, base_url: str, settings: dict[str, Any], secrets: dict[str, str]
) -> Target:
    if source.kind != KIND:
        raise ImportRefused([f"Source {source.name} is of the kind {source.kind}, not {KIND}."])
    if settings or secrets:
        raise ImportRefused([f"Source {source.name} exists: its settings and secrets are changed at itself."])
    own = str(source.config.get("base_url", ""))
    if (wanted := _wanted(document, base_url)) not in (own, ""):
        raise ImportRefused(
            [f"Source {source.name} is {own}, and this API is {wanted}. Name another source, or give the "
             f"base URL {own} if the document is about that one."]
        )  # fmt: skip
    return Target(
        source=source, name=source.name, base_url=own, config=source.config, secrets=_stored(source)
    )


def _wanted(document: Document, base_url: str) -> str:
    """Empty where neither the document nor anybody says where the API is."""
    try:
        return base_url_of(document, base_url)
    except UnusableDocument:
        if base_url:
            raise
        return ""


def _stored(source: Source) -> dict[str, str]:
    try:
        return source.credentials
    except CredentialsUnreadable:
        return {}


def _source_at(base_url: str) -> Source | None:
    """The one source of this address, where there is just one."""
    found = [one for one in Source.objects.filter(kind=KIND) if one.config.get("base_url") == base_url]
    return found[0] if len(found) == 1 else None


def _free_name(base_url: str) -> str:
    host = re.sub(r"[^A-Za-z0-9_.-]+", "-", urlsplit(base_url).hostname or "").lstrip("-_.")
    stem = host[: LONGEST_NAME - 4] or "api"
    taken = set(Source.objects.values_list("name", flat=True))
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name
