"""Prompts, resources and templates of MCP servers: reconciling and curating them."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext

from catalogue.database import in_batches
from catalogue.models import AppPage, DiscoveryRun, Revision, ServerFeature, Source, Workflow
from catalogue.models.server_feature import OWN_CARD, OWN_SCHEMES, prefix_of, scheme_of
from catalogue.naming import make_tool_name
from catalogue.presentation import read_icons
from catalogue.reconciliation import BATCH, RECORDED_OBJECTS, lock_as_listed
from connectors.definitions import FeatureDefinition, FeatureKind, RejectedDefinition
from connectors.formats.mcp_apps import SCHEME

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
                    enabled=is_enabled_when_new(current, said),
                )
            )
        elif _update(feature, said, current, run):
            changed.append(feature)
    _keep_pages(current, listing)
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


def _keep_pages(source: Source, listing: FeatureListing) -> None:
    """Stores the HTML of apps, and deletes what is neither served nor offered."""
    pages = {_sha256(one.html): one.html for one in listing.definitions.values() if one.html}
    known = set(source.app_pages.values_list("sha256", flat=True))
    new = [AppPage(source=source, sha256=key, html=pages[key]) for key in pages.keys() - known]
    AppPage.objects.bulk_create(new, batch_size=10)
    if known - pages.keys():
        used = {
            str((definition or {}).get("html_sha256", ""))
            for pair in source.features.values_list("definition", "offered")
            for definition in pair
        }
        source.app_pages.filter(sha256__in=known - pages.keys() - used).delete()


def _sha256(html: str) -> str:
    return hashlib.sha256(html.encode()).hexdigest()


def words_of(definition: FeatureDefinition) -> dict[str, Any]:
    """The stored form of a definition: of an app's HTML, its hash."""
    icons, _ = read_icons(definition.icons)
    if definition.html:
        definition = definition.model_copy(update={"html_sha256": _sha256(definition.html)})
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


def is_enabled_when_new(source: Source, definition: Mapping[str, Any]) -> bool:
    """An app is code that runs in clients, so a curator reads it first."""
    return source.new_workflows == Source.NewWorkflows.EXPOSED and "html_sha256" not in definition


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
    elif definition.html:
        rest, number = definition.id.removeprefix(SCHEME), 1
        made = f"{SCHEME}{source.name}/{rest}"
        while made in taken or made == OWN_CARD:
            number += 1
            made = f"{SCHEME}{source.name}/{number}/{rest}"
    else:
        is_of_another = definition.kind is FeatureKind.RESOURCE and made.startswith(spaces)
        is_ours = scheme_of(made) in OWN_SCHEMES or made == OWN_CARD
        if made in taken or is_ours or is_of_another:
            made = prefix_of(source) + made
    taken.add(made)
    return made


def describe(feature: ServerFeature, definition: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The definition as labels and values, for a curator."""
    described = [
        (gettext("Title"), definition.get("title", "")),
        (gettext("Description"), definition.get("description", "")),
    ]
    if feature.kind == FeatureKind.PROMPT.value:
        required = gettext("required")
        lines = [
            f"{one['name']}{f' ({required})' if one.get('required') else ''}: {one.get('description', '')}"
            for one in definition.get("arguments", [])
        ]
        return [*described, (gettext("Arguments"), "\n".join(lines))]
    return [
        (gettext("Name"), definition.get("name", "")),
        *described,
        (gettext("MIME type"), definition.get("mime_type", "")),
        *(_describe_app(definition) if feature.is_app else ()),
    ]


def _describe_app(definition: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the app's frame may do in clients, in words."""
    ui = definition.get("ui", {})
    nothing = gettext("nothing")
    origins = {name: "\n".join(listed) for name, listed in ui.get("csp", {}).items()}
    permitted = {
        "camera": gettext("the camera"),
        "microphone": gettext("the microphone"),
        "geolocation": gettext("the place where the person is"),
        "clipboardWrite": gettext("the clipboard, to write to it"),
    }
    used = [words for name, words in permitted.items() if name in ui.get("permissions", {})]
    return [
        (gettext("Sends data to"), origins.get("connectDomains", nothing)),
        (
            gettext("Loads scripts, styles, images and fonts from"),
            origins.get("resourceDomains", nothing),
        ),
        (gettext("Shows pages of"), origins.get("frameDomains", nothing)),
        (gettext("Resolves addresses against"), origins.get("baseUriDomains", nothing)),
        (gettext("Asks to use"), ", ".join(used) or nothing),
        (gettext("Own domain"), ui.get("domain", "")),
        (gettext("SHA-256 of its HTML"), definition.get("html_sha256", "")),
    ]
