import base64
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from connectors import settings
from connectors.network.headers import FRAMING, TOKEN
from connectors.network.policy import normalise_base_url
from connectors.settings import REQUESTS, FieldProblem, SourceConfig, hint

OAUTH = {"authentication": "oauth_client_credentials"}
KEY = {"authentication": "api_key"}
BASIC = {"authentication": "basic"}


class HttpConfig(SourceConfig):
    base_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="Base URL",
        description="What all addresses of the API begin with, such as https://api.example.com/v1.",
        json_schema_extra=hint(address=True),
    )
    authentication: Literal["none", "api_key", "bearer", "basic", "oauth_client_credentials"] = Field(
        default="none", title="Authentication", description="How requests authenticate."
    )
    api_key_in: Literal["header", "query"] = Field(
        default="header", title="Key goes into", json_schema_extra=hint(only_if=KEY)
    )
    api_key_name: str = Field(
        default="X-API-Key",
        max_length=100,
        title="Name of the header or parameter",
        json_schema_extra=hint(only_if=KEY),
    )
    api_key: settings.HeaderSecret = Field(
        default=SecretStr(""), title="API key", json_schema_extra=hint(only_if=KEY)
    )
    token: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="Bearer token",
        json_schema_extra=hint(only_if={"authentication": "bearer"}),
    )
    username: str = Field(
        default="", max_length=500, title="User name", json_schema_extra=hint(only_if=BASIC)
    )
    password: SecretStr = Field(
        default=SecretStr(""), title="Password", json_schema_extra=hint(only_if=BASIC)
    )
    oauth_token_url: settings.OAuthUrl = Field(
        default="", json_schema_extra=hint(address=True, only_if=OAUTH)
    )
    oauth_client_id: settings.OAuthClientId = Field(default="", json_schema_extra=hint(only_if=OAUTH))
    oauth_client_secret: settings.OAuthClientSecret = Field(
        default=SecretStr(""), json_schema_extra=hint(only_if=OAUTH)
    )
    oauth_scope: settings.OAuthScope = Field(default="", json_schema_extra=hint(only_if=OAUTH))
    oauth_audience: settings.OAuthAudience = Field(default="", json_schema_extra=hint(only_if=OAUTH))
    request_timeout_seconds: settings.RequestTimeoutSeconds = 30.0
    max_response_bytes: settings.MaxResponseBytes = 10_000_000
    follow_redirects: bool = Field(
        default=True,
        title="Follow redirects",
        description="Credentials never go along to another host.",
        json_schema_extra=REQUESTS,
    )
    promise_output_schemas: bool = Field(
        default=False,
        title="Promise documented answers",
        description="Clients get the output schemas of imported documents too, and an answer that breaks its "
        "schema is an error. Off: it is delivered as it is, and its execution's page says what is wrong.",
        json_schema_extra=REQUESTS,
    )
    verify_tls: settings.VerifyTls = True
    ca_file: settings.CaFile = ""

    @model_validator(mode="after")
    def _key_has_a_place(self) -> Self:
        in_header = self.authentication == "api_key" and self.api_key_in == "header"
        if in_header and not (
            TOKEN.fullmatch(self.api_key_name) and self.api_key_name.lower() not in FRAMING
        ):
            raise FieldProblem("api_key_name", "This is no name of a header that a key can go into.")
        if self.authentication == "api_key" and not self.api_key_name:
            raise FieldProblem("api_key_name", "The parameter that the key goes into needs a name.")
        return self

    @property
    def lacking(self) -> str:
        needed = {
            "api_key": {"API key": self.api_key.get_secret_value()},
            "bearer": {"bearer token": self.token.get_secret_value()},
            # Some APIs expect a key as the user name, and no password.
            "basic": {"user name": self.username},
            "oauth_client_credentials": {
                "OAuth token URL": self.oauth_token_url,
                "OAuth client id": self.oauth_client_id,
                "OAuth client secret": self.oauth_client_secret.get_secret_value(),
            },
        }
        return ", ".join(name for name, value in needed.get(self.authentication, {}).items() if not value)

    @property
    def secrets(self) -> list[str]:
        """In every encoding in which they are sent."""
        own = (self.api_key, self.token, self.password, self.oauth_client_secret)
        together = [basic_word(self.username, self.password)] if self.authentication == "basic" else []
        return [*(secret.get_secret_value() for secret in own), *together]


def basic_word(username: str, password: SecretStr) -> str:
    """After "Basic", in UTF-8 (RFC 7617, 2.1)."""
    return base64.b64encode(f"{username}:{password.get_secret_value()}".encode()).decode("ascii")
