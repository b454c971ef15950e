"""The settings of a Prefect server or of a workspace in Prefect Cloud."""

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from connectors.network.policy import normalise_base_url
from connectors.settings import (
    CaFile,
    FieldProblem,
    HeaderSecret,
    MaxResponseBytes,
    MinPollSeconds,
    RequestTimeoutSeconds,
    VerifyTls,
    hint,
)

RESULTS = hint(group="Results and logs")
REQUESTS = hint(group="Requests")
TRUST = hint(address=True, group="TLS")
"""TLS trust decides who receives the secrets."""


class PrefectConfig(BaseModel):
    """Where the API is, who we are there, and where flows leave their results."""

    # Without hide_input_in_errors a mistyped key would be quoted by the error about it.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    base_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="API URL",
        description="What Prefect calls PREFECT_API_URL: http://prefect.example.com:4200/api, or "
        "https://api.prefect.cloud/api/accounts/.../workspaces/... for a workspace in Prefect Cloud.",
        json_schema_extra=hint(address=True),
    )
    api_key: HeaderSecret = Field(
        default=SecretStr(""),
        title="API key",
        description="Of Prefect Cloud, or of a gateway that asks for one; sent as a bearer token.",
    )
    auth_string: SecretStr = Field(
        default=SecretStr(""),
        title="Auth string",
        description="user:password, where the server was started with PREFECT_SERVER_API_AUTH_STRING.",
    )
    include_tags: list[str] = Field(
        default=[],
        title="Only with these tags",
        description="Only deployments that carry at least one of these tags are listed. Empty: all.",
    )
    result_artifact_key: str = Field(
        default="catalog-result",
        pattern=r"^[a-z0-9-]+$",
        max_length=255,
        title="Key of the result artifact",
        description="The artifact that holds a run's result; without it the result is the message of the "
        "state that the run ended in. Lower-case letters, digits and dashes, as Prefect wants it.",
        json_schema_extra=RESULTS,
    )
    log_lines: int = Field(
        default=20,
        ge=0,
        le=200,
        title="Lines of the log",
        description="How many of a run's last log lines are kept with its record; the newest one is its "
        "progress message while it runs. 0: logs are never read.",
        json_schema_extra=RESULTS,
    )
    min_poll_seconds: MinPollSeconds = Field(default=1.0, json_schema_extra=REQUESTS)
    request_timeout_seconds: RequestTimeoutSeconds = Field(default=30.0, json_schema_extra=REQUESTS)
    max_response_bytes: MaxResponseBytes = Field(
        default=10_000_000,
        description="Answers beyond this are cut off and refused; a page holds up to 200 deployments.",
        json_schema_extra=REQUESTS,
    )
    verify_tls: VerifyTls = Field(default=True, json_schema_extra=TRUST)
    ca_file: CaFile = Field(default="", json_schema_extra=TRUST)

    @field_validator("auth_string")
    @classmethod
    def _user_and_password(cls, auth: SecretStr) -> SecretStr:
        if (value := auth.get_secret_value().strip()) and ":" not in value:
            raise ValueError("must be user:password")
        return SecretStr(value)

    @model_validator(mode="after")
    def _one_way_to_log_in(self) -> Self:
        if self.api_key.get_secret_value() and self.auth_string.get_secret_value():
            raise FieldProblem("auth_string", "Give an API key or an auth string, not both.")
        return self
