"""Prompts, resources and templates of MCP servers."""

from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from catalogue.features import DEFINED, split
from catalogue.history import Actor, change_rows, record_change, set_fields
from catalogue.models import Revision, ServerFeature

CHANGEABLE = ("enabled", "served_as", "title_override", "description_override")


def switch_features(features: QuerySet[ServerFeature], *, enabled: bool, by: Actor) -> int:
    """Enable or disable them. Returns how many changed."""
    message = "Enabled." if enabled else "Disabled."
    return change_rows(by, features, message, named_by="served_as", enabled=enabled)


@transaction.atomic
def accept_change(feature: ServerFeature, *, offer: str, by: Actor) -> bool:
    """Serve the server's present definition. False if its hash is not `offer`, the one that was reviewed."""
    Revision.lock()
    row = ServerFeature.objects.get(pk=feature.pk)
    if row.offered is None or row.offer_hash != offer:
        return False
    row.definition, row.offered = row.offered | split(row.definition)[1], None
    row.changed_at = timezone.now()
    row.save(update_fields=DEFINED)
    record_change(by, [row], "Accepted the server's change.")
    return True


@transaction.atomic
def change_feature(feature: ServerFeature, **decisions: Any) -> ServerFeature:
    """Raises ValidationError keyed by field."""
    set_fields(feature, decisions, allowed=CHANGEABLE)
    Revision.lock()
    feature.full_clean()
    feature.save(update_fields=list(decisions))
    return feature
