import json
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.core.validators import BaseValidator, MaxValueValidator, MinValueValidator
from django.db import models

from connectors.formats.json import write_json

if TYPE_CHECKING:
    AnyTextField = models.TextField[Any, Any]
else:
    AnyTextField = models.TextField


class JSONTextField(AnyTextField):
    """A JSON value stored as text that no query looks into. Unlike a native JSON column it keeps key order,
    large numbers and the NUL character, which PostgreSQL's jsonb refuses: payloads of engines and agents are
    recorded unchanged."""

    if TYPE_CHECKING:
        _pyi_private_set_type: Any
        _pyi_private_get_type: Any

    def from_db_value(self, value: str | None, *_: Any) -> Any:
        return None if value is None else json.loads(value)

    def get_prep_value(self, value: Any) -> Any:
        """JSON's null where the column is not nullable."""
        if (value is None and self.null) or hasattr(value, "as_sql"):
            return value
        return write_json(value)

    def to_python(self, value: Any) -> Any:
        """Text from a form or a fixture is parsed as JSON; other values are returned as they are."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValidationError(f"Not valid JSON: {error}") from error

    def value_to_string(self, obj: models.Model) -> str:
        return json.dumps(self.value_from_object(obj))


def optional_number(
    label: str | None = None, *, least: int = 1, most: int | None = None, help_text: Any
) -> "models.PositiveIntegerField[int | None, int | None]":
    validators: list[BaseValidator] = [MinValueValidator(least)] if least else []
    if most is not None:
        validators.append(MaxValueValidator(most))
    return models.PositiveIntegerField(
        label, null=True, blank=True, validators=validators, help_text=help_text
    )
