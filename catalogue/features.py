"""Prompts, resources and templates of MCP servers: reconciling and curating them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.utils import timezone

from catalogue.database import in_batches
from catalogue.models import DiscoveryRun, Revision, ServerFeature, Source, Workflow
from catalogue.models.server_feature import OWN_SCHEMES, prefix_of, scheme_of
from catalogue.naming import make_tool_name
from catalogue.presentation import read_icons
from catalogue.reconciliation import BATCH, RECORDED_OBJECTS, lock_as_listed
from connectors.definitions import FeatureDefinition, FeatureKind, RejectedDefinition

Key = tuple[str, str]  # Kind and the server's name or address
UNREVIEWED = ("icons", "size")  # No text that agents read, and a size changes often
DEFINED = ("definition", "offered", "missing_since", "changed_at")
MAX_GONE = 1_000  # Of a source
KEPT = "The last listed ones are kept."


@dataclass(slots=True)
class FeatureListing:
    definitions: dict[Key, FeatureDefinition] = field(default_factory=dict)
    skipped: list[dict[str, Any]] = field(default_factory=list)


def read_features(items: Iterable[FeatureDefinition | RejectedDefinition]) -> FeatureListing:
    listing = FeatureListing()
    for number, item in enumerate(items):
        if isinstance(item, RejectedDefinition):
            position, reason = item.position, item.reason
        elif (item.kind.value, item.id) in listing.definitions:
            position, reason = number, f"{item.kind}: an earlier one has the same name or address"
        else:
            listing.definitions[item.kind.value, item.id] = item
            continue
        listing.skipped.append({"position": position, "id": item.id, "name": item.name, "reason": reason})
    return listing


@transaction.atomic
def reconcile_features(source: Source, listing: FeatureListing, run: DiscoveryRun) -> str:
    """Add, update and hold features, and mark missing ones, in queries per batch. Returns a sentence, empty
    for a server that never had any. Changes of exposed features are held unless the source follows its
    engine. Raises Superseded."""
    current, now = lock_as_listed(source), timezone.now()
    known = {(feature.kind, feature.upstream_id): feature for feature in current.features.all()}
    new, changed = list[ServerFeature](), list[ServerFeature]()
    is_new = listing.definitions.keys() - known.keys()
    taken, spaces = _taken_names(current) if is_new else ({}, ())
    for key, definition in listing.definitions.items():
        said = words_of(definition)
        if (feature := known.pop(key, None)) is None:
            new.append(
                ServerFeature(
                    source=current,
                    kind=definition.kind.value,
                    upstream_id=definition.id,
                    served_as=_make_name(definition, current, taken[definition.kind], spaces),
                    definition=said,
                    enabled=is_enabled_when_new(current),
                )
            )
        elif _update(feature, said, current, run):
            changed.append(feature)
    gone = [feature for feature in known.values() if feature.missing_since is None]
    for feature in gone:
        feature.missing_since = now
    _forget(known.values())
    ServerFeature.objects.bulk_create(new, batch_size=BATCH)
    ServerFeature.objects.bulk_update([*changed, *gone], DEFINED, batch_size=BATCH)
    if any(feature.enabled for feature in [*new, *changed, *gone]):
        Revision.bump()
    run.skipped_count += len(listing.skipped)
    run.skipped = [*run.skipped, *listing.skipped][:RECORDED_OBJECTS]
    run.flagged = run.flagged[:RECORDED_OBJECTS]
    if not (listing.definitions or gone):
        return ""
    counts = {"new": len(new), "changed": len(changed), "gone": len(gone)}
    told = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number)
    return f" Prompts and resources listed: {len(listing.definitions):,}{f' ({told})' if told else ''}."


def words_of(definition: FeatureDefinition) -> dict[str, Any]:
    """The stored form of a definition."""
    icons, _ = read_icons(definition.icons)
    described = definition.model_dump(mode="json", exclude={"kind", "id", "icons"}, exclude_defaults=True)
    return described | ({"icons": icons} if icons else {})


def split(definition: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what curators decide on, and what is served without a decision."""
    shown = {name: definition[name] for name in UNREVIEWED if name in definition}
    return {name: value for name, value in definition.items() if name not in shown}, shown


def _forget(missing: Iterable[ServerFeature]) -> None:
    """Deletes missing features except the latest with a curator's decision: some servers invent new addresses
    each time."""
    latest = sorted(missing, key=lambda one: (one.missing_since or one.changed_at, one.pk), reverse=True)
    decided = [one for one in latest if one.enabled or one.title_override or one.description_override]
    kept = {one.pk for one in decided[:MAX_GONE]}
    keys = [one.pk for one in latest if one.pk not in kept]
    for batch in in_batches(keys, BATCH):
        # Clients do not see them, so the revision stays.
        ServerFeature._base_manager.filter(pk__in=batch).delete()


def _update(feature: ServerFeature, said: dict[str, Any], source: Source, run: DiscoveryRun) -> bool:
    """Returns whether anything has changed."""
    was = [getattr(feature, name) for name in DEFINED]
    follows = source.change_policy == Source.ChangePolicy.FOLLOW or not feature.enabled
    (said, shown), (accepted, _) = split(said), split(feature.definition)
    if said == accepted or follows:
        feature.offered = None
    elif said != feature.offered:
        feature.offered = said
        reason = "The change is held for review: the accepted version is still served."
        run.flagged.append({"id": feature.upstream_id, "name": feature.served_as, "reason": reason})
    if said != accepted and follows:
        accepted, feature.changed_at = said, timezone.now()
    feature.definition = accepted | shown
    feature.missing_since = None
    return was != [getattr(feature, name) for name in DEFINED]


def is_enabled_when_new(source: Source) -> bool:
    return source.new_workflows == Source.NewWorkflows.EXPOSED


def _taken_names(own: Source) -> tuple[dict[FeatureKind, set[str]], tuple[str, ...]]:
    """Names and addresses of all sources, and what the addresses of other servers' templates begin with."""
    taken, spaces = {kind: set[str]() for kind in FeatureKind}, []
    for kind, served_as, source in ServerFeature.objects.values_list("kind", "served_as", "source"):
        taken[FeatureKind(kind)].add(served_as)
        if kind == FeatureKind.TEMPLATE.value and source != own.pk:
            spaces.append(served_as.partition("{")[0])
    prompts = Workflow.objects.filter(offered_as_prompt=True)
    taken[FeatureKind.PROMPT].update(prompts.values_list("tool_name", flat=True))
    return taken, tuple(spaces)


def _make_name(
    definition: FeatureDefinition, source: Source, taken: set[str], spaces: tuple[str, ...]
) -> str:
    made = definition.id
    if definition.kind is FeatureKind.PROMPT:
        made = make_tool_name(
            name=made, upstream_id=made, source_name=source.name, taken=taken, without_name="prompt"
        )
    else:
        is_of_another = definition.kind is FeatureKind.RESOURCE and made.startswith(spaces)
        if made in taken or scheme_of(made) in OWN_SCHEMES or is_of_another:
            made = prefix_of(source) + made
    taken.add(made)
    return made


def describe(feature: ServerFeature, definition: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The definition as labels and values, for a curator."""
    described = [("Title", definition.get("title", "")), ("Description", definition.get("description", ""))]
    if feature.kind == FeatureKind.PROMPT.value:
        lines = [
            f"{one['name']}{' (required)' if one.get('required') else ''}: {one.get('description', '')}"
            for one in definition.get("arguments", [])
        ]
        return [*described, ("Arguments", "\n".join(lines))]
    return [("Name", definition.get("name", "")), *described, ("MIME type", definition.get("mime_type", ""))]
