"""What of each model stands in the file. A field that is in none of these lists fails a test."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.contrib.auth.models import Group
from django.db import models

from catalogue import curation, sources, toolsets
from catalogue.models import ProductSettings, Source, Toolset, ToolsetRule, Workflow, WorkflowFilter

VERSION = 1
"""Of the file's format."""
SECTIONS: dict[str, type[models.Model]] = {
    "settings": ProductSettings,
    "groups": Group,
    "sources": Source,
    "filters": WorkflowFilter,
    "toolsets": Toolset,
    "workflows": Workflow,
    "listed": Workflow,
}
"""In the file's order, with the model whose permissions they need."""


@dataclass(frozen=True, kw_only=True)
class Curated:
    """The fields of a model: those that the file has under their own names, and all others."""

    model: type[models.Model]
    fields: tuple[str, ...]
    """Left out of the file where they have the model's default."""
    otherwise: frozenset[str] = frozenset()
    """In the file too, but not as a field of that name."""
    left_out: frozenset[str] = frozenset()
    """What each installation has for itself."""

    @cached_property
    def names(self) -> dict[str, str]:
        """The model's name for a field by the file's."""
        return {field.removesuffix("_override"): field for field in self.fields}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """By the model's names; whoever takes one that can be changed copies it."""
        found = {field: self.model._meta.get_field(field).get_default() for field in self.fields}  # type: ignore[union-attr]
        return {
            field: default.value if isinstance(default, models.Choices) else default
            for field, default in found.items()
        }

    def decided(self, row: models.Model) -> dict[str, Any]:
        """What differs from the defaults, by the file's names."""
        return {
            name: value
            for name, field in self.names.items()
            if (value := getattr(row, field)) != self.defaults[field]
        }


LISTED: Mapping[str, str] = {
    "name": "name",
    "title": "upstream_title",
    "description": "description",
    "category": "category",
    "version": "version",
    "author": "author",
    "tags": "tags",
    "execution_type": "execution_type",
    "input_schema": "input_schema",
    "output_schema": "output_schema",
    "annotations": "hints",
    "icons": "icons",
    "timeout_seconds": "upstream_timeout_seconds",
    "cache_seconds": "upstream_cache_seconds",
    "queries": "queries",
    "signals": "signals",
    "metadata": "metadata",
}
"""What an engine says of a workflow: the names of `WorkflowDefinition`, and of the model."""
LISTED_BESIDES = ("schema_problem", "resembles")
"""What was found out about it then."""
MISSING = "missing"
"""Says of a listed workflow that its engine lists it no more."""

SOURCE = Curated(
    model=Source,
    fields=tuple(name for name in sources.UPDATABLE if name != "name"),
    otherwise=frozenset({"name", "kind", "config", "encrypted_credentials"}),
    left_out=frozenset(
        {
            "id", "created_at", "updated_at", "configured_at", "health_state", "health_message",
            "failing_since", "failures", "last_refreshed_at", "next_refresh_at", "refresh_lease_expires_at",
        }
    ),
)  # fmt: skip
WORKFLOW = Curated(
    model=Workflow,
    fields=(*curation.OVERRIDABLE, "tool_aliases"),
    otherwise=frozenset(
        {
            "source", "upstream_id", "enabled", "former_tool_names", "missing_since",
            *LISTED.values(), *LISTED_BESIDES,
        }
    ),
    left_out=frozenset({"id", "content_hash", "first_seen_at", "changed_at"}),
)  # fmt: skip
TOOLSET = Curated(
    model=Toolset,
    fields=tuple(name for name in toolsets.CHANGEABLE if name != "slug"),
    otherwise=frozenset({"slug", "picked"}),
    left_out=frozenset({"id", "created_at", "updated_at"}),
)
RULE_FIELDS = ("action", "subject", "syntax", "pattern", "enabled", "note")
FILTER = Curated(
    model=WorkflowFilter, fields=RULE_FIELDS, otherwise=frozenset({"position"}), left_out=frozenset({"id"})
)
TOOLSET_RULE = Curated(
    model=ToolsetRule,
    fields=RULE_FIELDS,
    otherwise=frozenset({"position", "toolset"}),
    left_out=frozenset({"id"}),
)
SETTINGS = Curated(
    model=ProductSettings,
    fields=(),
    otherwise=frozenset({"overrides"}),
    left_out=frozenset({"id", "changed_at", "changed_by"}),
)
GROUP = Curated(
    model=Group, fields=(), otherwise=frozenset({"name", "permissions"}), left_out=frozenset({"id"})
)
ALL = (SOURCE, WORKFLOW, TOOLSET, FILTER, TOOLSET_RULE, SETTINGS, GROUP)
