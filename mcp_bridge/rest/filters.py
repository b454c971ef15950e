"""By what the list of toolsets can be narrowed and ordered."""

import django_filters  # type: ignore[import-untyped]

from catalogue.models import Toolset
from catalogue.rest.lists import StableOrdering, StrictBooleanFilter


class ToolsetFilters(django_filters.FilterSet):  # type: ignore[misc]
    enabled = StrictBooleanFilter()
    mode = django_filters.ChoiceFilter(choices=Toolset.Mode.choices)
    ordering = StableOrdering(fields=["slug", "created_at", "updated_at"])
