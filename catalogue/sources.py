"""Adding and changing connections to engines, for every door."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from loguru import logger

from catalogue.connections import addresses_in, connector_for, make_connector, secret_fields
from catalogue.database import run_without_connection
from catalogue.history import Actor, record_change
from catalogue.models import Revision, Source
from catalogue.models.source import TOLERATED_LOSS
from catalogue.reconciliation import judge_anew
from catalogue.secrets import CredentialsUnreadable
from connectors.errors import ConnectorError, Misconfigured
from connectors.protocol import Connector, Health

CHECK_TIMEOUT_SECONDS = 60.0
UPDATABLE = (
    "name",
    "enabled",
    "new_workflows",
    "change_policy",
    "vanishing_share_percent",
    "refresh_interval",
    "max_concurrent",
)


def create_source(
    *,
    name: str,
    kind: str,
    config: dict[str, Any],
    credentials: dict[str, str],
    enabled: bool = True,
    new_workflows: str = Source.NewWorkflows.HIDDEN,
    change_policy: str = Source.ChangePolicy.CAREFUL,
    vanishing_share_percent: int = TOLERATED_LOSS,
    refresh_interval: int | None = None,
    max_concurrent: int | None = None,
) -> Source:
    """Add a source; its first listing is due at once. Raises ValidationError keyed by field."""
    source = Source(
        name=name,
        kind=kind,
        config=config,
        enabled=enabled,
        new_workflows=new_workflows,
        change_policy=change_policy,
        vanishing_share_percent=vanishing_share_percent,
        refresh_interval=refresh_interval,
        max_concurrent=max_concurrent,
    )
    source.credentials = credentials
    check_settings(source)
    source.full_clean()
    source.save()
    return source


def configure_source(
    source: Source, *, config: dict[str, Any] | None = None, credentials: dict[str, str] | None = None
) -> Source:
    """Replace the settings, the credentials or both; a listing with them is due at once.

    Raises ValidationError keyed by field, and changes nothing then.
    """
    if config is not None:
        _check_is_object(config)
        if credentials is None and source.encrypted_credentials:
            check_address_is_kept(source, config)
        source.config = config
    if credentials is not None:
        source.credentials = credentials
    check_settings(source)
    # A listing with the old settings loses its hold on the source; how often they failed no longer counts.
    source.next_refresh_at = source.configured_at = timezone.now()
    source.refresh_lease_expires_at, source.failures = None, 0
    # Not the whole row: a listing that ends meanwhile writes its own part of it.
    source.save(
        update_fields=[
            "config",
            "encrypted_credentials",
            "configured_at",
            "next_refresh_at",
            "refresh_lease_expires_at",
            "failures",
            "updated_at",
        ]
    )
    return source


def check_address_is_kept(source: Source, config: dict[str, Any]) -> None:
    """Stored secrets go where they were meant to go: to have them sent elsewhere, one has to know them.

    Raises ValidationError where the new settings name another address.
    """
    if addresses_in(source.kind, config) != addresses_in(source.kind, source.config):
        raise ValidationError({"credentials": "The engine's address changes: enter its secrets again."})


def reencrypt_credentials() -> tuple[int, list[str]]:
    """Encrypt all credentials with the present key: how many, and the sources whose key is not known."""
    done, unreadable = 0, []
    for source in Source.objects.exclude(encrypted_credentials="").order_by("name"):
        # Not over credentials that somebody enters at this moment, which have the present key already.
        before = Source.objects.filter(pk=source.pk, encrypted_credentials=source.encrypted_credentials)
        try:
            source.credentials = source.credentials
        except CredentialsUnreadable:
            unreadable.append(source.name)
        else:
            before.update(encrypted_credentials=source.encrypted_credentials)
            done += 1
    return done, unreadable


def update_source(source: Source, **changes: Any) -> Source:
    """Change what is ours to say about a source, which UPDATABLE names.

    Switched on, or with another interval, it is due at once unless it is refreshed by hand only. By another
    policy for changes, what is held is judged anew. Raises ValidationError keyed by field.
    """
    if unknown := set(changes) - set(UPDATABLE):
        raise TypeError(f"Not changed this way: {', '.join(sorted(unknown))}")
    for name, value in changes.items():
        setattr(source, name, value)
    source.full_clean()
    if "refresh_interval" in changes or changes.get("enabled"):
        source.next_refresh_at = None if source.refresh_interval == 0 else timezone.now()
        changes["next_refresh_at"] = source.next_refresh_at
    with transaction.atomic():
        Revision.lock()
        stored = Source.objects.only("change_policy").get(pk=source.pk).change_policy
        source.save(update_fields=[*changes, "updated_at"])
        if source.change_policy != stored and "change_policy" in changes:
            judge_anew(source)
    return source


@transaction.atomic
def enable_sources(sources: QuerySet[Source], *, by: Actor | None = None) -> int:
    """List them again, at once, and expose their workflows. Returns how many were off."""
    Revision.lock()
    before = list(sources.filter(enabled=False))
    switched = [source.pk for source in before]
    Source.objects.filter(pk__in=switched).update(enabled=True)
    Source.objects.filter(pk__in=switched).exclude(refresh_interval=0).update(next_refresh_at=timezone.now())
    _bump_if(switched)
    _record_if(by, before, "Switched on.")
    return len(switched)


@transaction.atomic
def disable_sources(sources: QuerySet[Source], *, by: Actor | None = None) -> int:
    """Neither list nor expose nor run anything of theirs. Returns how many were on."""
    Revision.lock()
    before = list(sources.filter(enabled=True))
    switched = [source.pk for source in before]
    Source.objects.filter(pk__in=switched).update(enabled=False)
    _bump_if(switched)
    _record_if(by, before, "Switched off.")
    return len(switched)


def _record_if(by: Actor | None, before: list[Source], told: str) -> None:
    if by is not None:
        record_change(by, before, told)


def _bump_if(switched: list[int]) -> None:
    if switched:
        Revision.bump()


def check_settings(source: Source) -> None:
    """Raises ValidationError unless a connector can be made from the source's settings."""
    _check_is_object(source.config)
    try:
        misplaced = sorted(set(secret_fields(source.kind)) & set(source.config))
    except Misconfigured as error:
        raise ValidationError({"kind": error.message}) from None
    if misplaced:
        raise ValidationError(
            {"config": f"{', '.join(misplaced)}: a secret; as a credential it would be stored encrypted."}
        )
    try:
        make_connector(source)
    except Misconfigured as error:
        raise ValidationError({"config": error.message}) from None


def _check_is_object(config: object) -> None:
    if not isinstance(config, dict):
        raise ValidationError({"config": "The settings have to be a JSON object."})


def check_source(source: Source) -> Health:
    """Try to talk to the engine now. Never raises for what the engine or the settings do wrong."""
    return run_without_connection(_check(connector_for(source)))


def check_candidate(source: Source) -> Health:
    """The same with settings that are not stored, by a connector that nobody else uses."""
    return run_without_connection(_check(_connector_of_candidate(source)))


@asynccontextmanager
async def _connector_of_candidate(source: Source) -> AsyncIterator[Connector]:
    connector = make_connector(source)
    try:
        yield connector
    finally:
        await connector.aclose()


async def _check(opened: AbstractAsyncContextManager[Connector]) -> Health:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_SECONDS), opened as connector:
            return await connector.check()
    except TimeoutError:
        return Health(ok=False, message=f"No answer within {CHECK_TIMEOUT_SECONDS:g} s.")
    except ConnectorError as error:
        return Health(ok=False, message=error.message)
    except Exception:  # noqa: BLE001 - a connector's own mistake is told like an engine's
        logger.exception("A connector failed in a way of its own")
        return Health(ok=False, message="An error of ours, not of the engine; the log has the details.")
