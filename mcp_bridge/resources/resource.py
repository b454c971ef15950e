"""What a kind of resource consists of: its addresses, who may read them, what is found there."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mcp.shared.uri_template import UriTemplate
from mcp_types import BlobResourceContents, ResourceTemplate, TextResourceContents

from catalogue.scopes import Scope
from mcp_bridge.tokens import Access

JSON = "application/json"
TEXT = "text/plain"


class UnknownResource(Exception):
    """There is nothing at the address, or nothing that the caller may see; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Reading:
    access: Access
    uri: str
    variables: Mapping[str, str]
    """Those of the template, decoded. One of the query may be missing."""

    def holds(self, text: str, *, mime_type: str = JSON) -> "Found":
        return Found([TextResourceContents(uri=self.uri, mime_type=mime_type, text=text)])


Contents = TextResourceContents | BlobResourceContents


@dataclass(frozen=True, slots=True)
class Found:
    contents: Sequence[Contents]
    changes: bool = False
    """Whether it is about to change, so that no client should keep it."""


Suggest = Callable[[Access, str], Iterable[str]]
"""Values that a template's variable can have, the best first, for a caller who has typed this much."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceKind:
    template: UriTemplate
    name: str
    title: str
    description: str
    mime_type: str | None = JSON
    scopes: frozenset[Scope]
    """Any of them is enough."""
    read: Callable[[Reading], Found]
    """Synchronous, as it may ask the database. Raises UnknownResource."""
    suggestions: Mapping[str, Suggest] = field(default_factory=dict)
    """By variable; likewise synchronous."""

    def is_open_to(self, scopes: Iterable[str]) -> bool:
        return not self.scopes.isdisjoint(scopes)

    @property
    def as_template(self) -> ResourceTemplate:
        return ResourceTemplate(
            uri_template=str(self.template),
            name=self.name,
            title=self.title,
            description=self.description,
            mime_type=self.mime_type,
        )
