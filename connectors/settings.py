"""Settings that several connectors have, and what a Config says of its fields for forms and scripts.

verify_tls: VerifyTls = Field(default=True, json_schema_extra=hint(group="TLS"))
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue, SecretStr
from pydantic.fields import FieldInfo

from connectors.network.policy import endpoint_url, normalise_base_url


def _address_or_nothing(text: str) -> str:
    return normalise_base_url(text) if text.strip() else ""


def _endpoint_or_nothing(text: str) -> str:
    return endpoint_url(text) if text.strip() else ""


def _fit_for_a_header(secret: SecretStr) -> SecretStr:
    value = secret.get_secret_value().strip()
    if not (value.isascii() and value.isprintable()):
        raise ValueError("must consist of printable ASCII characters")
    return SecretStr(value)


OptionalUrl = Annotated[str, AfterValidator(_address_or_nothing)]
"""A base URL, to which paths are appended; may be empty."""
OptionalEndpoint = Annotated[str, AfterValidator(_endpoint_or_nothing)]
"""The URL of one endpoint, kept as it was typed; may be empty."""
HeaderSecret = Annotated[SecretStr, AfterValidator(_fit_for_a_header)]
"""A key or token that is sent in a header."""

OAuthUrl = Annotated[
    OptionalEndpoint,
    Field(
        title="OAuth token URL",
        description="Where an access token is got by client credentials, such as "
        "https://auth.example.com/oauth2/token. Empty: no OAuth.",
    ),
]
OAuthClientId = Annotated[
    str,
    Field(max_length=500, title="OAuth client id", description="Identifies this product at the token URL."),
]
OAuthClientSecret = Annotated[
    SecretStr, Field(title="OAuth client secret", description="Sent with the client id.")
]
OAuthAudience = Annotated[
    str,
    Field(
        max_length=500,
        title="OAuth audience",
        description="For whom the token is to be, where the token URL asks for that.",
    ),
]
OAuthScope = Annotated[
    str,
    Field(
        max_length=500,
        title="OAuth scope",
        description="What the token is to allow, where the token URL asks for that.",
    ),
]

MinPollSeconds = Annotated[
    float,
    Field(
        ge=1.0,
        le=3600,
        title="Shortest polling interval (s)",
        description="A run's status is never asked for more often than this.",
    ),
]
RequestTimeoutSeconds = Annotated[
    float, Field(gt=0, le=3600, title="Request timeout (s)", description="For one whole request.")
]
MaxResponseBytes = Annotated[
    int,
    Field(
        ge=1_000,
        le=1_000_000_000,
        title="Largest answer (bytes)",
        description="Answers beyond this are cut off and refused.",
    ),
]
VerifyTls = Annotated[
    bool,
    Field(
        title="Verify TLS",
        description="Switch off only for tests: without it anyone in between can read the credentials.",
    ),
]
CaFile = Annotated[
    str,
    Field(
        title="CA file",
        description="PEM file on this server with the company's own authorities, trusted in addition.",
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hints:
    """Metadata of one field."""

    address: bool = False
    """An address to which secrets are sent: changing it requires that they are entered again."""
    group: str = ""
    """The collapsed section of the form; empty: the section that is always shown."""
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
    """Raised by validators of a whole Config: which field is wrong, and why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
