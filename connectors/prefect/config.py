from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from connectors import settings
from connectors.network.policy import normalise_base_url
from connectors.settings import FieldProblem, SourceConfig, hint

RESULTS = hint(group="Results and logs")


class PrefectConfig(SourceConfig):
    base_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="API URL",
        description="What Prefect calls PREFECT_API_URL: http://prefect.example.com:4200/api, or "
        "https://api.prefect.cloud/api/accounts/.../workspaces/... for a workspace in Prefect Cloud.",
        json_schema_extra=hint(address=True),
    )
    api_key: settings.HeaderSecret = Field(
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
    min_poll_seconds: settings.MinPollSeconds = 1.0
    request_timeout_seconds: settings.RequestTimeoutSeconds = 30.0
    max_response_bytes: settings.MaxResponseBytes = Field(
        default=10_000_000,
        description="Answers beyond this are cut off and refused; a page holds up to 200 deployments.",
    )
    verify_tls: settings.VerifyTls = True
    ca_file: settings.CaFile = ""

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
