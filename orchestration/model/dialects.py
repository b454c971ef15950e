"""The parameters that a model server accepts: all at first, without those that it refuses."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

SchemaFormat = Literal["json_schema", "object_schema", "json_object", "text"]
FORMATS: tuple[SchemaFormat, ...] = ("json_schema", "object_schema", "json_object", "text")
"""The strictest first. `object_schema` is for older servers of llama.cpp."""
LimitName = Literal["max_tokens", "max_completion_tokens", ""]

ABOUT_FORMAT = re.compile(
    r"response_?format|json_?schema|json_?object|structured|grammar|guided", re.IGNORECASE
)
ABOUT_LIMIT = re.compile(r"max_(?:completion_)?tokens", re.IGNORECASE)
ABOUT_TEMPERATURE = re.compile(r"temperature", re.IGNORECASE)
ABOUT_LENGTH = re.compile(r"context[ _-]?(?:length|window|size)|prompt is too long", re.IGNORECASE)
"""Such messages name parameters that are not the cause."""
NOT_ABOUT_PARAMETERS = (0, 401, 403, 408, 429)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    format: SchemaFormat = "json_schema"
    temperature: bool = True
    limit: LimitName = "max_tokens"
    """Newer servers refuse `max_tokens`; older ones ignore its successor silently."""

    def parameters(self, schema: dict[str, Any] | None, *, answer_tokens: int) -> dict[str, Any]:
        parameters: dict[str, Any] = {"temperature": 0} if self.temperature else {}
        if self.limit:
            parameters[self.limit] = answer_tokens
        if schema is not None and self.format != "text":
            parameters["response_format"] = self._format_of(schema)
        return parameters

    def _format_of(self, schema: dict[str, Any]) -> dict[str, Any]:
        if self.format == "json_object":
            return {"type": "json_object"}
        if self.format == "object_schema":
            return {"type": "json_object", "schema": schema}
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": False}}

    def fallback_for(self, status: int, words: str, *, asks_for_json: bool) -> "Fallback | None":
        """The next dialect to try; None if the refusal has another cause.

        If a refusal names no parameter, drops them one after another, the least important first.
        """
        if status in NOT_ABOUT_PARAMETERS or ABOUT_LENGTH.search(words):
            return None
        fallbacks = list(self._fallbacks(asks_for_json=asks_for_json))
        named = [Fallback(dialect, is_named=True) for about, dialect in fallbacks if about.search(words)]
        if not named and status in (400, 422):
            named = [Fallback(dialect, is_named=False) for _, dialect in fallbacks]
        return next(iter(named), None)

    def _fallbacks(self, *, asks_for_json: bool) -> Iterator[tuple[re.Pattern[str], "Dialect"]]:
        if self.temperature:
            yield ABOUT_TEMPERATURE, replace(self, temperature=False)
        if self.limit:
            renamed = self.limit == "max_tokens"
            yield ABOUT_LIMIT, replace(self, limit="max_completion_tokens" if renamed else "")
        if asks_for_json and self.format != "text":
            yield ABOUT_FORMAT, replace(self, format=FORMATS[FORMATS.index(self.format) + 1])


@dataclass(frozen=True, slots=True)
class Fallback:
    dialect: Dialect
    is_named: bool  # Whether the refusal names the dropped parameter; otherwise that is a guess


known_dialects: dict[tuple[str, str], Dialect] = {}  # By base URL and model
forget_dialects = known_dialects.clear
