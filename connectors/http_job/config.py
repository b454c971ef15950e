"""The settings of a source with a declared engine, and the declarations that ship."""

from functools import cache, lru_cache
from importlib.resources import files
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator

from connectors import settings
from connectors.formats.yaml import UnusableText
from connectors.http_job.declaration import Declaration, read_declaration
from connectors.network.policy import normalise_base_url
from connectors.settings import REQUESTS, FieldProblem, SourceConfig, hint

OWN: Literal["own"] = "own"
PRESETS = ("airflow", "argo", "awx", "buildbot", "conductor", "dagster", "github_actions", "jenkins", "n8n")
"""Files in presets/, in the order in which they are offered."""
Preset = Literal[
    "own", "airflow", "argo", "awx", "buildbot", "conductor", "dagster", "github_actions", "jenkins", "n8n"
]


@cache
def preset_text(name: str) -> str:
    return (files("connectors.http_job") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")


@lru_cache(32)
def declaration_of(preset: str, text: str) -> Declaration:
    """Raises UnusableText."""
    return read_declaration(text if preset == OWN else preset_text(preset))


def _kinds_that_need(*settings_: str) -> dict[str, list[str]]:
    needing = [name for name in PRESETS if declaration_of(name, "").login.needs & {*settings_}]
    return {"preset": [OWN, *needing]}


_PRESETS_WITH_WEBHOOK = [name for name in PRESETS if declaration_of(name, "").webhook is not None]
FEWEST_CHARACTERS = 16


def _presets_with_values() -> list[str]:
    return [name for name in PRESETS if declaration_of(name, "").values]


class HttpJobConfig(SourceConfig):
    preset: Preset = Field(
        default=OWN,
        title="Engine",
        description=f"One that ships, or {OWN}: the declaration below says how it is asked.",
    )
    base_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="Address",
        description="What all addresses of the engine's API begin with, such as https://airflow.example.com; "
        "of GitHub Actions https://api.github.com/repos/OWNER/REPOSITORY.",
        json_schema_extra=hint(address=True),
    )
    declaration: str = Field(
        default="",
        max_length=200_000,
        title="Declaration",
        description="The engine's API in YAML, as docs/job-engines.md describes it.",
        json_schema_extra=hint(multiline=True, only_if={"preset": OWN}),
    )
    username: str = Field(
        default="",
        max_length=500,
        title="User name",
        json_schema_extra=hint(only_if=_kinds_that_need("username")),
    )
    password: SecretStr = Field(
        default=SecretStr(""), title="Password", json_schema_extra=hint(only_if=_kinds_that_need("password"))
    )
    token: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="Token or API key",
        json_schema_extra=hint(only_if=_kinds_that_need("token")),
    )
    webhook_secret: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="Webhook secret",
        description="What the engine signs its deliveries with, at least 16 characters. The source's page "
        "then shows the address to enter at the engine. Empty: the engine is polled only.",
        json_schema_extra=hint(group="Webhook", only_if={"preset": [OWN, *_PRESETS_WITH_WEBHOOK]}),
    )
    oauth_token_url: settings.OAuthUrl = Field(
        default="", json_schema_extra=hint(address=True, group="OAuth", only_if={"preset": OWN})
    )
    oauth_client_id: settings.OAuthClientId = Field(
        default="", json_schema_extra=hint(group="OAuth", only_if={"preset": OWN})
    )
    oauth_client_secret: settings.OAuthClientSecret = Field(
        default=SecretStr(""), json_schema_extra=hint(group="OAuth", only_if={"preset": OWN})
    )
    oauth_scope: settings.OAuthScope = Field(
        default="", json_schema_extra=hint(group="OAuth", only_if={"preset": OWN})
    )
    oauth_audience: settings.OAuthAudience = Field(
        default="", json_schema_extra=hint(group="OAuth", only_if={"preset": OWN})
    )
    values: dict[str, str] = Field(
        default={},
        title="Values",
        description="Where the declaration lets a source choose, such as ref=main for GitHub Actions.",
        json_schema_extra=hint(only_if={"preset": [OWN, *_presets_with_values()]}),
    )
    min_poll_seconds: settings.MinPollSeconds = 2.0
    request_timeout_seconds: settings.RequestTimeoutSeconds = 30.0
    max_response_bytes: settings.MaxResponseBytes = 10_000_000
    details_at_once: int = Field(
        default=4,
        ge=1,
        le=32,
        title="Second requests at once",
        description="Of a listing that asks for each workflow once more.",
        json_schema_extra=REQUESTS,
    )
    details_per_listing: int = Field(
        default=10_000,
        ge=1,
        le=100_000,
        title="Second requests per listing",
        description="A listing that needs more ends there, and the next one goes on.",
        json_schema_extra=REQUESTS,
    )
    verify_tls: settings.VerifyTls = True
    ca_file: settings.CaFile = ""

    @field_validator("declaration")
    @classmethod
    def _readable(cls, text: str, info: ValidationInfo) -> str:
        if info.data.get("preset") == OWN and text.strip():
            try:
                declaration_of(OWN, text)
            except UnusableText as error:
                raise ValueError(str(error)) from None
        return text

    @model_validator(mode="after")
    def _is_declared(self) -> Self:
        if self.preset == OWN and not self.declaration.strip():
            raise FieldProblem("declaration", "Choose an engine above, or declare one here.")
        known = self.declared.values
        if unknown := sorted(self.values.keys() - known.keys()):
            listed = ", ".join(known) or "none"
            raise FieldProblem("values", f"{unknown[0]} is no value of the declaration; known are {listed}.")
        if secret := self.webhook_secret.get_secret_value():
            if self.declared.webhook is None:
                raise FieldProblem("webhook_secret", "The declaration says nothing of a webhook.")
            if len(secret) < FEWEST_CHARACTERS:
                raise FieldProblem("webhook_secret", f"Needs at least {FEWEST_CHARACTERS} characters.")
        if self.declared.login.oauth and not (self.oauth_token_url and self.oauth_client_id):
            raise FieldProblem("oauth_token_url", "The declared login needs the token URL and the client id.")
        return self

    @property
    def declared(self) -> Declaration:
        return declaration_of(self.preset, self.declaration)
