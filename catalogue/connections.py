"""The connectors of this process: one per source and event loop, shared, made anew when settings change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import SecretStr, ValidationError

from catalogue.models import Source
from catalogue.secrets import CredentialsUnreadable
from connectors.errors import Misconfigured
from connectors.protocol import ADDRESS, Connector
from connectors.registry import connector_class


@dataclass(slots=True)
class _Shared:
    fingerprint: str
    connector: Connector
    users: int = 0
    retired: bool = False


_connectors: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, _Shared]] = WeakKeyDictionary()


@asynccontextmanager
async def connector_for(source: Source) -> AsyncIterator[Connector]:
    """The source's connector on the running loop, open as long as it is used.

    Raises Misconfigured when the source's settings or credentials cannot be used.
    """
    shared = _share(source)
    shared.users += 1
    try:
        yield shared.connector
    finally:
        shared.users -= 1
        await _close_if_done(shared)


async def close_connectors() -> None:
    """Close everything that lives on the running loop."""
    for shared in _connectors.pop(asyncio.get_running_loop(), {}).values():
        await shared.connector.aclose()


def make_connector(source: Source) -> Connector:
    """A connector of its own for the source. Raises Misconfigured."""
    connector = connector_class(source.kind)
    try:
        return connector(connector.Config.model_validate(source.config | source.credentials))
    except ValidationError as error:
        raise Misconfigured(
            f"The settings of source {source.name} cannot be used: {_sentence(error)}"
        ) from None
    except CredentialsUnreadable as error:
        raise Misconfigured(str(error)) from None


def secret_fields(kind: str) -> list[str]:
    """The settings of this kind that are stored encrypted. Raises Misconfigured for an unknown kind."""
    fields = connector_class(kind).Config.model_fields
    return [name for name, field in fields.items() if _is_secret(field.annotation)]


def address_fields(kind: str) -> list[str]:
    """The settings that say where secrets are sent. Raises Misconfigured for an unknown kind."""
    fields = connector_class(kind).Config.model_fields
    return [name for name, field in fields.items() if field.json_schema_extra == ADDRESS]


def find_setting_problems(kind: str, settings: dict[str, Any]) -> dict[str, list[str]]:
    """What is wrong with settings and secrets together, by field; `""` for what concerns no single one.

    Values are never quoted. Raises Misconfigured for an unknown kind.
    """
    config = connector_class(kind).Config
    try:
        config.model_validate(settings)
    except ValidationError as error:
        problems: dict[str, list[str]] = {}
        for problem in error.errors(include_url=False, include_input=False, include_context=False):
            field, *inside = map(str, problem["loc"] or [""])
            message = problem["msg"].removeprefix("Value error, ")
            problems.setdefault(field, []).append(f"{'.'.join(inside)}: {message}" if inside else message)
        return problems
    return {}


def _share(source: Source) -> _Shared:
    loop_connectors = _connectors.setdefault(asyncio.get_running_loop(), {})
    known, fingerprint = loop_connectors.get(source.pk), source.settings_fingerprint
    if known is not None and known.fingerprint == fingerprint:
        return known
    fresh = loop_connectors[source.pk] = _Shared(fingerprint, make_connector(source))
    if known is not None:
        known.retired = True
        if not known.users:
            _closing.add(closing := asyncio.ensure_future(known.connector.aclose()))
            closing.add_done_callback(_closing.discard)
    return fresh


_closing: set[asyncio.Future[None]] = set()
"""Keeps tasks alive until they are done; the loop alone holds them weakly."""


async def _close_if_done(shared: _Shared) -> None:
    if shared.retired and not shared.users:
        await shared.connector.aclose()


def _is_secret(annotation: Any) -> bool:
    return annotation is SecretStr or SecretStr in getattr(annotation, "__args__", ())


def _sentence(error: ValidationError) -> str:
    """Field by field, without the values: they may be secret."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)
