"""Finding the prompt, resource or template of an MCP server by what clients ask for."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mcp.shared.path_security import contains_path_traversal
from mcp.shared.uri_template import UriTemplate

from catalogue.models import ServerFeature
from connectors.server_features import FeatureKind

Features = Sequence[ServerFeature]
LONGEST_READ = 2_000  # Characters of an address


def find_template(features: Features, template: str) -> ServerFeature | None:
    return _find(features, FeatureKind.TEMPLATE, template)


def _find(features: Features, kind: FeatureKind, served_as: str) -> ServerFeature | None:
    found = (one for one in features if one.kind == kind.value and one.served_as == served_as)
    return next(found, None)


@dataclass(frozen=True, slots=True)
class Located:
    feature: ServerFeature
    uri: str
    """The server's own address."""


def find_resource(features: Features, uri: str) -> Located | None:
    """The exposed resource of that address, else of the first template that the address matches."""
    if (resource := _find(features, FeatureKind.RESOURCE, uri)) is not None:
        return Located(resource, resource.upstream_id)
    templates = [feature for feature in features if feature.kind == FeatureKind.TEMPLATE.value]
    # The oldest first, so that no server takes over the addresses of another one's template.
    for feature in sorted(templates, key=lambda one: one.pk):
        if uri.startswith(feature.prefix):
            own = _within(feature.upstream_id, uri[len(feature.prefix) :])
            if own is not None:
                return Located(feature, own)
    return None


def _within(template: str, uri: str) -> str | None:
    """The address as the template makes it of its variables, so that nothing else gets to the server."""
    parsed = parsed_template(template)
    found = None if "#" in uri and "{#" not in template else parsed.match(uri)
    if found is None:
        return None
    expanded = parsed.expand(found)
    # The server reads what is sent, which may decode to other values than what the client wrote.
    read = parsed.match(expanded) or {}
    if not read or len(expanded) > LONGEST_READ or not all(map(_is_safe, [*found.values(), *read.values()])):
        return None
    return expanded


def _is_safe(value: str | Collection[str]) -> bool:
    values = [value] if isinstance(value, str) else value
    return not any(contains_path_traversal(one) or not one.isprintable() for one in values)


@lru_cache(maxsize=5_000)
def parsed_template(template: str) -> UriTemplate:
    return UriTemplate.parse(template)
