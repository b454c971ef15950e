import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone
from loguru import logger

from catalogue.connections import (
    addresses_in,
    connector_for,
    describe_bug,
    make_connector,
    secret_fields,
)
from catalogue.database import run_without_connection
from catalogue.discovery import make_due, refresh_source
from catalogue.history import Actor, change_rows, record_change, set_fields
from catalogue.models import DiscoveryRun, Revision, Source, Toolset
from catalogue.reconciliation import apply_policy_to_held
from catalogue.secrets import CredentialsUnreadable, decrypt_credentials, encrypt_credentials
from connectors.errors import ConnectorError, Misconfigured
from connectors.protocol import Connector, Health

CHECK_TIMEOUT_SECONDS = 60.0
UPDATABLE = (
    "name", "enabled", "new_workflows", "change_policy", "vanishing_share_percent", "refresh_interval",
    "max_concurrent", "reserved_for",
)  # fmt: skip


def create_source(*, credentials: dict[str, str], **fields: Any) -> Source:
    """`fields` are the model's; the first listing is due at once. Raises ValidationError keyed by field."""
    source = Source(**fields)
    source.credentials = credentials
    check_settings(source)
    source.full_clean()
    source.save()
    return source


def change_source(source: Source, **changes: Any) -> Source:
    """Change fields of UPDATABLE, `config` and `credentials`. Raises ValidationError by field, and changes
    nothing then. New settings make a listing due; so do enabling and a new interval, unless the source is
    refreshed by hand only. A new change policy is applied to held changes."""
    if not changes:
        return source
    if "config" in changes:
        _check_is_object(changes["config"])
        if "credentials" not in changes and source.encrypted_credentials:
            check_address_is_kept(source, changes["config"])
    set_fields(source, changes, allowed=(*UPDATABLE, "config", "credentials"))
    # Not the whole row: a listing that ends meanwhile writes its own part of it.
    written = {*changes, "updated_at"} - {"credentials"}
    if not changes.keys().isdisjoint(UPDATABLE):
        source.full_clean()
    if "refresh_interval" in changes or changes.get("enabled"):
        source.next_refresh_at = None if source.refresh_interval == 0 else timezone.now()
        written.add("next_refresh_at")
    if not changes.keys().isdisjoint(("config", "credentials")):
        check_settings(source)
        # A listing with the old settings loses its lease, and its failures no longer count.
        source.next_refresh_at = source.configured_at = timezone.now()
        source.refresh_lease_expires_at, source.failures = None, 0
        written |= {"encrypted_credentials", "configured_at", "next_refresh_at", "failures"}
        written.add("refresh_lease_expires_at")
    with transaction.atomic():
        Revision.lock()
        policy = Source.objects.only("change_policy").get(pk=source.pk).change_policy
        source.save(update_fields=written)
        if "change_policy" in changes and source.change_policy != policy:
            apply_policy_to_held(source)
    return source


def check_address_is_kept(source: Source, config: dict[str, Any]) -> None:
    """Stored secrets never go to another address. Raises ValidationError if the settings name one."""
    if addresses_in(source.kind, config) != addresses_in(source.kind, source.config):
        raise ValidationError({"credentials": "The engine's address changes: enter its secrets again."})


def encrypted_columns() -> Iterator[tuple[type[models.Model], str]]:
    """Each column of any model with a name that begins with `encrypted_`."""
    for model in apps.get_models():
        for field in model._meta.concrete_fields:
            if field.name.startswith("encrypted_"):
                yield model, field.name


def reencrypt_credentials() -> tuple[int, list[str]]:
    """Re-encrypt with the present key. Returns how many, and the names of rows with an unknown key. It can be
    interrupted and repeated at any time."""
    done, unreadable = 0, []
    for model, column in encrypted_columns():
        rows = model._base_manager.exclude(**{column: ""}).exclude(**{column: None})
        for key, stored in rows.order_by("pk").values_list("pk", column):
            # Credentials that are entered meanwhile already have the present key.
            before = model._base_manager.filter(pk=key, **{column: stored})
            try:
                encrypted = encrypt_credentials(decrypt_credentials(stored))
            except CredentialsUnreadable:
                unreadable.append(str(model._base_manager.get(pk=key)))
            else:
                before.update(**{column: encrypted})
                done += 1
    return done, unreadable


@transaction.atomic
def rename_in_reservations(key: str, name: str) -> None:
    """The user or group with a key such as `user:7` is now called a name such as `user:ada`."""
    Revision.lock()
    for model in (Source, Toolset):
        for row in model._default_manager.filter(reserved_keys__contains=key):
            keys = {name if known == key else other: known for other, known in row.reserved_keys.items()}
            row.reserved_for, row.reserved_keys = sorted(keys), keys
            row.save(update_fields=["reserved_for"])


@transaction.atomic
def switch_sources(sources: QuerySet[Source], *, enabled: bool, by: Actor | None = None) -> int:
    """Enable them, due at once, or disable them. Returns how many changed."""
    if enabled:
        due = Source.objects.filter(pk__in=sources.values("pk"), enabled=False).exclude(refresh_interval=0)
        due.update(next_refresh_at=timezone.now())
    message = "Enabled." if enabled else "Disabled."
    return change_rows(by, sources, message, named_by="name", enabled=enabled)


def list_now(source: Source, *, by: Actor) -> DiscoveryRun:
    """List the source as somebody asked for it. Raises what `refresh_source` raises."""
    record_change(by, [source], "Requested a listing.")
    return refresh_source(source)


def list_soon(sources: QuerySet[Source], *, by: Actor) -> int:
    """Have the worker list them, as somebody asked for it. Returns how many; 0 while discovery is off."""
    record_change(by, sources, "Requested a listing.")
    return make_due(sources)


def check_settings(source: Source) -> None:
    """Raises ValidationError unless a connector can be made from the source's settings."""
    _check_is_object(source.config)
    try:
        misplaced = sorted(set(secret_fields(source.kind)) & set(source.config))
    except Misconfigured as error:
        raise ValidationError({"kind": error.message}) from None
    if misplaced:
        message = f"{', '.join(misplaced)}: a secret; give it as a credential, so that it is encrypted."
        raise ValidationError({"config": message})
    try:
        make_connector(source)
    except Misconfigured as error:
        raise ValidationError({"config": error.message}) from None


def _check_is_object(config: object) -> None:
    if not isinstance(config, dict):
        raise ValidationError({"config": "The settings must be a JSON object."})


def webhook_address(source: Source) -> str:
    """Returns the URL to which the engine reports ended runs, if it has a webhook."""
    return f"{settings.PUBLIC_URL}{reverse('webhook', args=[source.name])}"


def check_source(source: Source) -> Health:
    """Connect to the engine now. Failures of engine and settings are part of the result."""
    return run_without_connection(_check(source, lambda: connector_for(source)))


def check_candidate(source: Source) -> Health:
    """Like `check_source`, for settings that are not stored, with a separate connector."""
    return run_without_connection(_check(source, lambda: aclosing(make_connector(source))))


async def _check(
    source: Source, open_connector: Callable[[], AbstractAsyncContextManager[Connector]]
) -> Health:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_SECONDS), open_connector() as connector:
            health: object = await connector.check()
            if isinstance(health, Health):
                return health
            raise TypeError(f"check() returned {type(health).__name__} instead of Health")
    except TimeoutError:
        return Health(ok=False, message=f"No answer within {CHECK_TIMEOUT_SECONDS:g} s.")
    except ConnectorError as error:
        return Health(ok=False, message=error.message)
    except Exception as error:  # noqa: BLE001 - a connector's bug is reported like an engine's failure
        logger.exception("A connector failed with an unexpected error")
        return Health(ok=False, message=describe_bug(source, error))
