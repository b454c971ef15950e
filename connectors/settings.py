"""Settings that several connectors share, and metadata of fields for forms and scripts."""

from pathlib import Path
from string import Formatter
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, SecretStr
from pydantic.fields import FieldInfo

from connectors.formats.json import as_object
from connectors.network.policy import endpoint_url, normalise_base_url


def _listed(values: Any) -> list[Any]:
    return [values] if isinstance(values, str) else list(values)


class Hints(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    address: bool = False
    """Secrets are sent to it: after a change, they must be entered again."""
    group: str = ""
    """The form's collapsed section; empty: the section that is always shown."""
    multiline: bool = False
    """For YAML, PEM and other texts or secrets of several lines."""
    only_if: dict[str, Annotated[list[str], BeforeValidator(_listed)]] = {}
    """Fields, and the values with which this one matters."""
    file: bool = False
    """The path of a file that the connector reads when it is made: a changed file needs another connector."""


def hint(**said: Any) -> dict[str, JsonValue]:
    """A field's `json_schema_extra`; see `Hints`. A single value in `only_if` need not be a list."""
    return Hints.model_validate(said).model_dump(exclude_defaults=True)


def hints_of(info: FieldInfo) -> Hints:
    said = as_object(info.json_schema_extra)
    return Hints.model_validate({name: said[name] for name in said.keys() & Hints.model_fields.keys()})


def names_in_braces(template: str) -> list[str]:
    """Returns them in order. Raises ValueError for an invalid template."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError:
        raise ValueError("has an unmatched brace") from None
    if any(form or conversion for _, _, form, conversion in parts):
        raise ValueError("must have only names between braces, without ':' or '!'")
    return [name for _, name, _, _ in parts if name is not None]


def state_of_file(path: str) -> tuple[int, ...]:
    """Modification time, size and identity, which show renewals; empty for a missing file."""
    try:
        about = Path(path).stat()
    except (OSError, ValueError):
        return ()
    return (about.st_mtime_ns, about.st_size, about.st_ino, about.st_dev)


class SourceConfig(BaseModel):
    # Without hide_input_in_errors a mistyped secret would be quoted by the error about it.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class FieldProblem(ValueError):
    """Raised by validators of a whole Config for one field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def _fit_for_a_header(secret: SecretStr) -> SecretStr:
    value = secret.get_secret_value().strip()
    if not (value.isascii() and value.isprintable()):
        raise ValueError("must consist of printable ASCII characters")
    return SecretStr(value)


OptionalUrl = Annotated[str, AfterValidator(lambda text: normalise_base_url(text) if text.strip() else "")]
"""A base URL, to which paths are appended, or empty."""
OptionalEndpoint = Annotated[str, AfterValidator(lambda text: endpoint_url(text) if text.strip() else "")]
HeaderSecret = Annotated[SecretStr, AfterValidator(_fit_for_a_header)]

OAuthUrl = Annotated[
    OptionalEndpoint,
    Field(
        title="OAuth token URL",
        description="The token endpoint for the client credentials grant, such as "
        "https://auth.example.com/oauth2/token. Leave empty to not use OAuth.",
    ),
]
OAuthClientId = Annotated[
    str,
    Field(
        max_length=500, title="OAuth client id", description="Identifies this product to the token endpoint."
    ),
]
OAuthClientSecret = Annotated[
    SecretStr, Field(title="OAuth client secret", description="Sent with the client id.")
]
OAuthAudience = Annotated[
    str,
    Field(
        max_length=500,
        title="OAuth audience",
        description="The audience to request the token for, if the authorization server requires one.",
    ),
]
OAuthScope = Annotated[
    str,
    Field(
        max_length=500,
        title="OAuth scope",
        description="The scope to request, if the authorization server requires one.",
    ),
]


def check_oauth(config: Any, *, beside: str, called: str) -> None:
    """Raises FieldProblem for OAuth without its client, or together with the secret in the field `beside`."""
    if not config.oauth_url:
        return
    if not (config.oauth_client_id and config.oauth_client_secret.get_secret_value()):
        raise FieldProblem(
            "oauth_url", "OAuth requires the client id and the client secret in addition to the token URL."
        )
    if getattr(config, beside).get_secret_value():
        raise FieldProblem(beside, f"Set either {called} or OAuth, not both.")


REQUESTS = hint(group="Requests")
TRUST = hint(address=True, group="TLS")
"""TLS trust decides who receives the secrets."""
MinPollSeconds = Annotated[
    float,
    Field(
        ge=1.0,
        le=3600,
        title="Minimum polling interval (s)",
        description="The minimum time between two requests for a run's status.",
        json_schema_extra=REQUESTS,
    ),
]
RequestTimeoutSeconds = Annotated[
    float,
    Field(
        gt=0,
        le=3600,
        title="Request timeout (s)",
        description="The time limit for one complete request.",
        json_schema_extra=REQUESTS,
    ),
]
MaxResponseBytes = Annotated[
    int,
    Field(
        ge=1_000,
        le=1_000_000_000,
        title="Maximum response size (bytes)",
        description="Larger responses are rejected.",
        json_schema_extra=REQUESTS,
    ),
]
VerifyTls = Annotated[
    bool,
    Field(
        title="Verify TLS",
        description="Turn this off only for tests: without verification, anyone on the network path can "
        "read the credentials.",
        json_schema_extra=TRUST,
    ),
]
CaFile = Annotated[
    str,
    Field(
        title="CA file",
        description="The path of a PEM file on this server with additional certificate authorities to trust. "
        "A renewed file takes effect at the next call.",
        json_schema_extra=hint(address=True, group="TLS", file=True),
    ),
]
