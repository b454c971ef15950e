"""The kinds of engines with their settings, and the connectors of this process: one per source and event
loop, replaced when settings change, closed when unused for long."""

import asyncio
import atexit
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from weakref import WeakKeyDictionary

from annotated_types import Ge, Gt, Le, Lt
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.db.models import Q
from django.utils import timezone
from loguru import logger
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from catalogue.database import DatabaseOutage, run_in_database
from catalogue.models import Source
from catalogue.naming import find_similar_names
from catalogue.secrets import (
    CredentialsUnreadable,
    SecretUnavailable,
    references_in,
    resolve,
    resolve_all,
    state_of,
)
from connectors.background import finish_in_background_loop
from connectors.errors import ConnectorError, Misconfigured, error_name
from connectors.network.redaction import Redactor, first_line, remember_credentials
from connectors.protocol import Connector
from connectors.registry import connector_class
from connectors.settings import FieldProblem, Hints, hints_of, state_of_file
from telemetry import metrics
from telemetry.traces import create_detached_task

CLOSING_SECONDS = 8.0
MIN_SECONDS = 5.0  # Minimum between two listings after notifications
MIN_SECONDS_WHILE_FAILING = 15.0
PAUSE_SECONDS = 1.0  # Minimum between two notifications that a process handles
LOOK_SECONDS = 15.0  # How often a listener checks that its connector still fits the source
UNUSED_SECONDS = 900.0  # After which a connector that does not listen is closed; its source may be gone
EMPTY: tuple[Any, ...] = (None, "", [], {})
EMPTY_VALUES: dict[Any, Any] = {str: "", list: [], dict: {}}
"""The value of an empty field, unless empty means the default; None for all other types."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    name: str
    title: str
    help: str
    type: Any  # Without `Annotated` and `| None`
    optional: bool
    required: bool
    secret: bool
    default: Any  # As JSON; None where there is none
    bounds: "Bounds"
    hints: Hints
    can_be_empty: bool  # Empty is a value other than the default, so it cannot mean the default

    empty: Any


@dataclass(frozen=True, slots=True)
class Bounds:
    lowest: float | None = None
    lowest_excluded: bool = False
    highest: float | None = None
    highest_excluded: bool = False

    def __str__(self) -> str:
        """`from 1 to 3,600`; empty without bounds."""
        words = []
        if self.lowest is not None:
            words.append(f"{'above' if self.lowest_excluded else 'from'} {self.lowest:,.15g}")
        if self.highest is not None:
            upward = "to" if words else "up to"
            words.append(f"{'below' if self.highest_excluded else upward} {self.highest:,.15g}")
        return " ".join(words)


def settings_of(kind: str) -> dict[str, Setting]:
    """Returns them in the order of the Config. Raises Misconfigured for a kind without a usable connector."""
    return read_settings(connector_class(kind).Config)


@cache
def read_settings(config: type[BaseModel]) -> dict[str, Setting]:
    read = {}
    for name, info in config.model_fields.items():
        plain = plain_type(info.annotation)
        secret, empty = plain is SecretStr, EMPTY_VALUES.get(get_origin(plain) or plain)
        default = info.get_default(call_default_factory=True, validated_data={})
        default = None if secret or default is PydanticUndefined else to_jsonable_python(default)
        read[name] = Setting(
            name=name,
            title=info.title or name.replace("_", " ").capitalize(),
            help=" ".join((info.description or "").split()),
            type=plain,
            optional=NoneType in get_args(info.annotation),
            required=info.is_required(),
            secret=secret,
            default=default,
            bounds=_bounds_of(info),
            hints=hints_of(info),
            empty=empty,
            can_be_empty=default not in EMPTY and _accepts(info, empty),
        )
    return read


def _accepts(info: FieldInfo, value: Any) -> bool:
    declared: Any = Annotated[info.annotation, *info.metadata, "as declared"]
    adapter: TypeAdapter[Any] = TypeAdapter(declared)
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


def plain_type(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return plain_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        others = [part for part in get_args(annotation) if part is not NoneType]
        return plain_type(others[0]) if len(others) == 1 else annotation
    return annotation


def _bounds_of(info: FieldInfo) -> Bounds:
    given: dict[str, Any] = {}
    for rule in info.metadata:
        match rule:
            case Ge(ge=lowest):
                given |= {"lowest": lowest}
            case Gt(gt=lowest):
                given |= {"lowest": lowest, "lowest_excluded": True}
            case Le(le=highest):
                given |= {"highest": highest}
            case Lt(lt=highest):
                given |= {"highest": highest, "highest_excluded": True}
    return Bounds(**given)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineKind:
    kind: str
    label: str = ""
    summary: str = ""
    config_schema: dict[str, Any] | None = None  # Secrets included; None without a usable connector
    secret_settings: list[str] = field(default_factory=list)
    problem: str = ""  # Why sources of this kind cannot be made or used; empty where they can


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
    """Returns whether metadata decides where or how a run starts; True unless the connector denies it."""
    try:
        return bool(getattr(connector_class(kind), "starts_by_metadata", True))
    except Misconfigured:
        return True


def summary_of(connector: type[Connector]) -> str:
    """The first paragraph of the connector's docstring."""
    paragraph, _, _ = (inspect.getdoc(connector) or "").partition("\n\n")
    return " ".join(paragraph.split())


async def _listen(source_id: int, name: str, fingerprint: str, notified: asyncio.Event) -> None:
    """Make the source due after each notification. Returns once it is disabled, changed or deleted."""
    outage = DatabaseOutage("Listening to changes of an engine's listing", source=name)
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await notified.wait()
        is_notified = notified.is_set()
        notified.clear()
        try:
            if not await run_in_database(_look_after, source_id, fingerprint, is_notified):
                return
        except (DatabaseError, InterfaceError) as error:
            outage.note(error)
            if is_notified:
                notified.set()
        else:
            outage.end()
        if is_notified:
            await asyncio.sleep(PAUSE_SECONDS)


def _look_after(source_id: int, fingerprint: str, is_notified: bool) -> bool:
    if is_notified:
        make_due_after_change(source_id)
        return True
    source = Source.objects.filter(pk=source_id, enabled=True).first()
    return source is not None and source.settings_fingerprint == fingerprint


def make_due_after_change(source_id: int) -> bool:
    """List the source again as soon as allowed, also after a listing in progress; False if never."""
    source = Source.objects.filter(pk=source_id, enabled=True).first()
    if source is None or not (settings.CATALOGUE.discovery_enabled and source.effective_refresh_interval):
        return False
    now = due = timezone.now()
    if source.failures:
        due = now + timedelta(seconds=MIN_SECONDS_WHILE_FAILING)
    elif source.last_refreshed_at is not None:
        due = max(now, source.last_refreshed_at + timedelta(seconds=MIN_SECONDS))
    later = Q(next_refresh_at=None) | Q(next_refresh_at__gt=due) | Q(refresh_lease_expires_at__gte=now)
    if Source.objects.filter(later, pk=source_id).update(next_refresh_at=due):
        logger.bind(source=source.name).info("The engine reports that its listing changed; listing it again")
    return True


@dataclass(slots=True, eq=False)
class _Shared:
    fingerprint: str
    connector: Connector
    users: int = 0
    used_at: float = 0.0  # By the loop's clock
    retired: bool = False
    watching: asyncio.Task[None] | None = None  # Until it is of no more use

    async def be_unused(self) -> None:
        """Returns once nobody has used it for `UNUSED_SECONDS`."""
        loop = asyncio.get_running_loop()
        while True:
            ends_at = (loop.time() if self.users else self.used_at) + UNUSED_SECONDS
            if ends_at <= loop.time():
                return
            await asyncio.sleep(ends_at - loop.time())

    def end(self) -> None:
        """No more listening or waiting."""
        if self.watching is not None:
            self.watching.cancel()

    def retire(self) -> None:
        """Accept no new users, and close once the present ones are done."""
        self.retired = True
        self.end()
        if not self.users:
            _closing.add(closing := asyncio.ensure_future(self.connector.aclose()))
            closing.add_done_callback(_closing.discard)


_connectors: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, _Shared]] = WeakKeyDictionary()


@asynccontextmanager
async def connector_for(source: Source) -> AsyncIterator[Connector]:
    """The source's connector on the running loop, open while it is in use. Raises Misconfigured.

    The connector errors that end the block are counted.
    """
    try:
        shared = _share(source)
    except Misconfigured as error:
        _count(source, error)
        raise
    shared.users += 1
    try:
        yield shared.connector
    except ConnectorError as error:
        _count(source, error)
        raise
    except SystemExit as error:
        # It would end the event loop, and with it the work of all sources.
        raise RuntimeError(f"The connector raised SystemExit: {error}") from error
    finally:
        shared.users -= 1
        shared.used_at = asyncio.get_running_loop().time()
        if shared.retired and not shared.users:
            await shared.connector.aclose()


def _count(source: Source, error: ConnectorError) -> None:
    """The label is bounded by the number of installed kinds."""
    metrics.connector_errors.labels(source.kind, error_name(error)).inc()


async def close_connectors() -> None:
    """Closes those of the running loop, and waits for the former ones that are being closed."""
    loop = asyncio.get_running_loop()
    former = [one for one in _closing.copy() if one.get_loop() is loop]
    closing = list(_connectors.pop(loop, {}).values())
    for shared in closing:
        shared.end()
    await asyncio.gather(*(shared.connector.aclose() for shared in closing), *former)


@atexit.register
def close_background_connectors() -> None:
    """Before the process ends: the programs that connectors started would outlive it."""
    finish_in_background_loop(close_connectors, seconds=CLOSING_SECONDS)


def make_connector(source: Source) -> Connector:
    connector = connector_class(source.kind)
    try:
        secrets = resolve_all(source.credentials)
    except (CredentialsUnreadable, SecretUnavailable) as error:
        raise Misconfigured(str(error)) from None
    remember_credentials(secrets.values())
    try:
        return connector(connector.Config.model_validate(source.config | secrets))
    except ValidationError as error:
        problems = [": ".join(filter(None, problem)) for problem in _problems(error, connector.Config)]
        message = f"The settings of source {source.name} cannot be used: {'; '.join(problems)}"
        raise Misconfigured(message) from None
    except Misconfigured:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - another package's connector may raise anything
        reason = _name_error(error, secrets.values())
        logger.error("The connector of source {} could not be made: {}", source.name, reason)
        raise Misconfigured(f"The connector of source {source.name} could not be made: {reason}") from None


def describe_bug(source: Source, error: Exception) -> str:
    """An error that is neither the engine's nor the settings', for people who see the source."""
    try:
        reason = _name_error(error, resolve_all(source.credentials).values())
    except (CredentialsUnreadable, SecretUnavailable):
        # What cannot be read cannot be masked.
        reason = type(error).__name__
    return f"An internal error, not one of the engine: {reason}. The log has the details."


def _name_error(error: BaseException, secrets: Iterable[str]) -> str:
    """`KeyError: 'id'`, as the text alone may be only `'id'`."""
    return first_line(Redactor(secrets).text(f"{type(error).__name__}: {error}")).rstrip(": .")


def secret_fields(kind: str) -> list[str]:
    """The settings of this kind that are stored encrypted. Raises Misconfigured for an unknown kind."""
    return [setting.name for setting in settings_of(kind).values() if setting.secret]


def addresses_in(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that name where secrets are sent, with their defaults. Raises Misconfigured."""
    named = (setting for setting in settings_of(kind).values() if setting.hints.address)
    return {setting.name: settings.get(setting.name, setting.default) for setting in named}


def find_setting_problems(kind: str, settings: dict[str, Any]) -> dict[str, list[str]]:
    """Problems of settings and secrets by field; `""` for those of no single field. Messages never quote
    values. Raises Misconfigured for an unknown kind."""
    config = connector_class(kind).Config
    resolved, problems = dict(settings), dict[str, list[str]]()
    for name in secret_fields(kind):
        try:
            if isinstance(value := settings.get(name), str):
                resolved[name] = resolve(value)
        except SecretUnavailable as error:
            problems[name] = [str(error)]
    if problems:
        return problems
    try:
        config.model_validate(resolved)
    except ValidationError as error:
        for field, message in _problems(error, config):
            problems.setdefault(field, []).append(message)
    return problems


def _problems(error: ValidationError, config: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Field and message; values are left out, as they may be secret."""
    for problem in error.errors(include_url=False, include_input=False):
        field, *inside = map(str, problem["loc"] or [""])
        raised = problem.get("ctx", {}).get("error")
        if not field and isinstance(raised, FieldProblem):
            field = raised.field
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden" and not inside:
            similar = find_similar_names(field, config.model_fields)
            hint = f"; did you mean {' or '.join(similar)}?" if similar else ""
            message = f"there is no such setting{hint}"
        yield field, f"{'.'.join(inside)}: {message}" if inside else message


def _share(source: Source) -> _Shared:
    loop_connectors = _connectors.setdefault(asyncio.get_running_loop(), {})
    known, fingerprint = loop_connectors.get(source.pk), source.settings_fingerprint
    if references := references_in(source.encrypted_credentials):
        # A changed file takes effect with the next call.
        fingerprint += state_of(references)
    files = (setting.name for setting in settings_of(source.kind).values() if setting.hints.file)
    if paths := [source.config[name] for name in files if source.config.get(name)]:
        fingerprint += repr(list(map(state_of_file, paths)))
    if known is not None and known.fingerprint == fingerprint:
        return known
    fresh = loop_connectors[source.pk] = _Shared(fingerprint, make_connector(source))
    fresh.used_at, last = asyncio.get_running_loop().time(), fresh.be_unused
    if fresh.connector.capabilities.reports_listing_changes:
        notified = asyncio.Event()
        fresh.connector.on_listing_changed(notified.set)
        last = partial(_listen, source.pk, source.name, source.settings_fingerprint, notified)
    fresh.watching = create_detached_task(_retire_after(last, loop_connectors, fresh, source.pk))
    if known is not None:
        known.retire()
    return fresh


async def _retire_after(
    last: Callable[[], Coroutine[Any, Any, None]],
    loop_connectors: dict[int, _Shared],
    shared: _Shared,
    source_id: int,
) -> None:
    await last()
    if loop_connectors.get(source_id) is shared:
        del loop_connectors[source_id]
        shared.retire()


_closing: set[asyncio.Future[None]] = set()  # Keeps them alive; the event loop holds weak references
