"""What a connector's Config may say of its fields beyond what pydantic knows, for forms and for scripts.

tls_key: SecretStr = Field(default=SecretStr(""), json_schema_extra=hint(group="TLS", multiline=True))
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue
from pydantic.fields import FieldInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Hints:
    """What is said of one field."""

    address: bool = False
    """It says where secrets are sent: whoever changes it has to enter them again."""
    group: str = ""
    """The fold of the form in which it stands; empty: among those that everybody has to look at."""
    multiline: bool = False
    """A text or secret of several lines, such as YAML or PEM."""
    only_if: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Other fields, and the values of theirs with which this one matters."""


def hint(
    *,
    address: bool = False,
    group: str = "",
    multiline: bool = False,
    only_if: Mapping[str, str | Sequence[str]] | None = None,
) -> dict[str, JsonValue]:
    """A field's `json_schema_extra`; `Hints` says what each means."""
    said: dict[str, JsonValue] = {}
    if address:
        said["address"] = True
    if group:
        said["group"] = group
    if multiline:
        said["multiline"] = True
    if only_if:
        said["only_if"] = {name: list(_listed(values)) for name, values in only_if.items()}
    return said


def hints_of(info: FieldInfo) -> Hints:
    said: dict[str, Any] = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    conditions = {name: list(_listed(values)) for name, values in (said.get("only_if") or {}).items()}
    return Hints(
        address=bool(said.get("address")),
        group=str(said.get("group") or ""),
        multiline=bool(said.get("multiline")),
        only_if=conditions,
    )


def _listed(values: str | Sequence[str]) -> Sequence[str]:
    return [values] if isinstance(values, str) else values


class FieldProblem(ValueError):
    """For validators of a whole Config: which field the admin has to look at, and why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
