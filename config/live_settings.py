"""The environment's settings, and over them what an administrator has changed while the product runs."""

from collections.abc import Callable, Mapping
from typing import Any, Self

from annotated_types import Ge, Gt, Le

from config.environment import Environment

GROUP = "live"
"""The mark of a field that can be changed, with the heading under which that is done."""


def _nothing() -> Mapping[str, Any]:
    return {}


class LiveSettings(dict[str, Any]):
    """Read by name, one at a time; a copy has the environment's values only."""

    def __init__(
        self, values: Mapping[str, Any], overrides: Callable[[], Mapping[str, Any]] = _nothing
    ) -> None:
        super().__init__(values)
        self.overrides = overrides
        """Asked at each reading of what can be changed; `catalogue.product_settings` knows."""

    def __getitem__(self, name: str) -> Any:
        if name in LIVE_SETTINGS and name in (changed := self.overrides()):
            return changed[name]
        return self.given(name)

    def given(self, name: str) -> Any:
        """The environment's value."""
        return super().__getitem__(name)

    def __or__(self, other: Any) -> Self:  # type: ignore[override]
        """With other values of the environment."""
        values = {name: self.given(name) for name in self}
        return type(self)(values | other, self.overrides)


def _describe(name: str) -> dict[str, Any]:
    field = Environment.model_fields[name]
    assert isinstance(field.json_schema_extra, dict), "only fields that carry the mark are described"
    bounds: dict[str, Any] = {"minimum": None, "above": None, "maximum": None}
    for bound in field.metadata:
        match bound:
            case Ge(ge=least):
                bounds["minimum"] = least
            case Gt(gt=limit):
                bounds["above"] = limit
            case Le(le=most):
                bounds["maximum"] = most
    return {
        "name": name,
        "variable": field.validation_alias.choices[0],  # type: ignore[union-attr]
        "group": field.json_schema_extra[GROUP],
        "type": field.annotation,
        "description": field.description,
        **bounds,
    }


LIVE_SETTINGS: dict[str, dict[str, Any]] = {
    name: _describe(name)
    for name, field in Environment.model_fields.items()
    if isinstance(field.json_schema_extra, dict) and GROUP in field.json_schema_extra
}
"""What can be changed, in the order of the fields: `{name, variable, group, type, description, minimum,
above, maximum}`."""
