"""A prompt, resource or resource template of an MCP server behind a source."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from catalogue.fields import JSONTextField
from catalogue.models.history import Exposing, ExposingQuerySet
from catalogue.models.source import Source
from connectors.definitions import MAX_ADDRESS_LENGTH, FeatureKind, address_problem
from connectors.formats.mcp_apps import SCHEME

PROMPT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
PREFIX = "upstream"
OWN_SCHEMES = frozenset({"workflow", "execution", PREFIX})
"""Of the product's own resources, and of servers' addresses that clash with another's."""
OWN_CARD = f"{SCHEME}workflow-catalogue/card.html"
MAX_SERVED = MAX_ADDRESS_LENGTH + 100  # With the prefix and the source's name


def scheme_of(uri: str) -> str:
    return uri.partition(":")[0].lower()


def prefix_of(source: Source) -> str:
    """Comes before the server's address where that is taken: `upstream://NAME/`."""
    return f"{PREFIX}://{source.name}/"


class ServerFeatureQuerySet(ExposingQuerySet["ServerFeature"]):
    def present(self) -> "ServerFeatureQuerySet":
        return self.filter(missing_since=None)

    def exposed(self) -> "ServerFeatureQuerySet":
        return self.filter(missing_since=None, enabled=True, source__enabled=True)


class AppPage(models.Model):
    """The HTML of an app of a server, apart from its definition, which lists read."""

    source = models.ForeignKey(Source, on_delete=models.CASCADE, related_name="app_pages")
    sha256 = models.CharField(max_length=64)
    html = models.TextField()

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["source", "sha256"], name="app_page_kept_once")]

    def __str__(self) -> str:
        return self.sha256


class ServerFeature(Exposing):
    class Kind(models.TextChoices):
        PROMPT = FeatureKind.PROMPT.value, _("prompt")
        RESOURCE = FeatureKind.RESOURCE.value, _("resource")
        TEMPLATE = FeatureKind.TEMPLATE.value, _("resource template")

    recorded_besides = ("definition",)
    names_by_people = ("title_override",)

    source = models.ForeignKey(Source, on_delete=models.CASCADE, related_name="features", editable=False)
    kind = models.CharField(max_length=10, choices=Kind.choices, editable=False)
    upstream_id = models.CharField(
        _("the server's name or address"), max_length=MAX_ADDRESS_LENGTH, editable=False
    )
    served_as = models.CharField(
        max_length=MAX_SERVED,
        help_text=_("The name or address by which clients know it. Made once, and stable."),
    )
    enabled = models.BooleanField(default=False, help_text=_("On: clients that may use the source see it."))
    title_override = models.CharField(
        _("title"), max_length=255, blank=True, help_text=_("Empty: the server's.")
    )
    description_override = models.TextField(
        _("description"), max_length=20_000, blank=True, help_text=_("Empty: the server's.")
    )
    definition = JSONTextField(default=dict, editable=False, help_text="The server's, as it is served.")
    offered = JSONTextField(
        null=True, editable=False, help_text="The server's changed definition, until a curator accepts it."
    )
    missing_since = models.DateTimeField(null=True, editable=False)
    first_seen_at = models.DateTimeField(default=timezone.now, editable=False)
    changed_at = models.DateTimeField(default=timezone.now, editable=False)

    objects: ClassVar[models.Manager["ServerFeature"]] = ServerFeatureQuerySet.as_manager()

    class Meta:
        default_permissions = ("change", "view")
        verbose_name = _("prompt or resource")
        verbose_name_plural = _("prompts and resources")
        ordering = ("kind", "served_as")
        constraints = [
            models.UniqueConstraint(fields=["source", "kind", "upstream_id"], name="feature_of_a_server"),
            models.UniqueConstraint(fields=["kind", "served_as"], name="feature_served_once"),
        ]

    def __str__(self) -> str:
        return self.served_as

    def clean(self) -> None:
        """Raises ValidationError for a name or address that clients or the product cannot use."""
        problem = ""
        match FeatureKind(self.kind):
            case FeatureKind.PROMPT if not PROMPT_NAME.fullmatch(self.served_as):
                problem = "A prompt's name has 1 to 64 letters, digits, underscores, dots or hyphens."
            case FeatureKind.RESOURCE:
                problem = self._address_problem()
            case FeatureKind.TEMPLATE:
                # Addresses are matched with it, so only the prefix can differ.
                own, prefixed = self.upstream_id, prefix_of(self.source) + self.upstream_id
                usable = [prefixed] if scheme_of(own) in OWN_SCHEMES else [own, prefixed]
                problem = "" if self.served_as in usable else f"This must be {' or '.join(usable)}."
        others = ServerFeature.objects.filter(kind=self.kind, served_as=self.served_as).exclude(pk=self.pk)
        if not problem and (other := others.select_related("source").first()) is not None:
            problem = f"Another one, of the source {other.source}, already has this."
        if problem:
            raise ValidationError({"served_as": problem})

    def _address_problem(self) -> str:
        if problem := address_problem(self.served_as):
            return f"{problem[0].upper()}{problem[1:]}."
        if scheme_of(self.served_as) in OWN_SCHEMES - {PREFIX}:
            return f"The scheme {scheme_of(self.served_as)}: belongs to the product's own resources."
        if scheme_of(self.served_as) == PREFIX and not self.served_as.startswith(prefix_of(self.source)):
            return f"An address with the scheme {PREFIX}: begins with {prefix_of(self.source)}."
        if self.served_as == OWN_CARD:
            return "This is the address of the product's own app."
        if self.app_sha256 and not self.served_as.startswith(SCHEME):
            return f"An app's address begins with {SCHEME}."
        return ""

    @property
    def title(self) -> str:
        return self.title_override or self.definition.get("title") or str(self.definition["name"])

    @property
    def description(self) -> str:
        return self.description_override or str(self.definition.get("description", ""))

    @property
    def arguments(self) -> list[dict[str, Any]]:
        """Returns those of a prompt: name, title, description, required."""
        arguments: list[dict[str, Any]] = self.definition.get("arguments", [])
        return arguments

    @property
    def app_sha256(self) -> str:
        """Identifies the accepted HTML of an app; empty if it is none."""
        return str(self.definition.get("html_sha256", ""))

    @property
    def is_app(self) -> bool:
        """Returns whether it is accepted or offered as an app, which runs in clients."""
        return bool(self.app_sha256 or (self.offered or {}).get("html_sha256"))

    @property
    def is_shown_app(self) -> bool:
        """Returns whether clients get it as an app, if it is exposed."""
        return bool(self.app_sha256) and self.source.shows_apps

    def html_of(self, definition: Mapping[str, Any] | None) -> str | None:
        """Reads the HTML of an app's definition. None: it is no app, or its server is not listed yet."""
        sha256 = (definition or {}).get("html_sha256", "")
        pages = AppPage.objects.filter(source=self.source_id, sha256=sha256)
        return pages.values_list("html", flat=True).first()

    @property
    def offer_hash(self) -> str:
        """Identifies the change that awaits review; a decision names it. Empty if there is none."""
        if self.offered is None:
            return ""
        return hashlib.sha256(json.dumps(self.offered, sort_keys=True).encode()).hexdigest()

    @property
    def prefix(self) -> str:
        """Returns what `served_as` has before the server's own address; empty if nothing."""
        return self.served_as.removesuffix(self.upstream_id) if self.served_as != self.upstream_id else ""
