"""Settings that several connectors have: their words, bounds and checks, which a Config may add to.

verify_tls: VerifyTls = Field(default=True, json_schema_extra=hint(group="TLS"))
"""

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from connectors.addresses import endpoint_url, normalise_base_url


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
"""What paths are appended to."""
OptionalEndpoint = Annotated[str, AfterValidator(_endpoint_or_nothing)]
"""What is asked just as it was typed."""
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
    str, Field(max_length=500, title="OAuth client id", description="Who we are at the token URL.")
]
OAuthClientSecret = Annotated[SecretStr, Field(title="OAuth client secret", description="What proves it.")]
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
