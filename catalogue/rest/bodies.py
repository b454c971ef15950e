"""Request bodies: JSON of a bounded size, and no field that would be ignored."""

from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings
from rest_framework import serializers, status
from rest_framework.parsers import BaseParser

from catalogue.rest.errors import TOO_LARGE, Refusal
from connectors.formats.json import UnreadableJSON, parse_json

SHOWN_NAME = 100
SHOWN_NAMES = 20


class BoundedJSONParser(BaseParser):
    """JSON in UTF-8 that is neither too large nor nested too deep."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit: int = settings.CATALOGUE["max_request_bytes"]
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise Refusal(status.HTTP_413_REQUEST_ENTITY_TOO_LARGE, TOO_LARGE, kind="validation")
        try:
            return parse_json(body)
        except UnreadableJSON as error:
            raise Refusal(400, f"The request's body cannot be read. {error}", kind="validation") from None


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses fields that it does not know: whoever misspells one should not believe that it took effect."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping) and (unknown := [name for name in data if name not in self.fields]):
            message = f"There is no such field; there are {', '.join(self.fields)}."
            raise serializers.ValidationError(
                {str(name)[:SHOWN_NAME]: [message] for name in unknown[:SHOWN_NAMES]}
            )
        if isinstance(data, Mapping) and (
            vague := [name for name in data if self._is_vague(name, data[name])]
        ):
            raise serializers.ValidationError({name: ["Say true or false."] for name in vague})
        return super().to_internal_value(data)

    def _is_vague(self, name: str, value: Any) -> bool:
        """REST framework takes 0, "no" and "off" for false, which only forms need."""
        field = self.fields[name]
        return isinstance(field, serializers.BooleanField) and not isinstance(value, bool | None)
