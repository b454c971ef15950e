from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from connectors import settings
from connectors.network.policy import normalise_base_url
from connectors.settings import SourceConfig, hint

RUNS = hint(group="Runs")


class RestateConfig(SourceConfig):
    ingress_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="Ingress URL",
        description="Where handlers are invoked, such as http://restate.example.com:8080.",
        json_schema_extra=hint(address=True),
    )
    admin_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="Admin URL",
        description="Where services are listed and invocations are looked at and cancelled, such as "
        "http://restate.example.com:9070.",
        json_schema_extra=hint(address=True),
    )
    token: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="Token",
        description="An API key of Restate Cloud, or of a gateway; sent to both addresses as a bearer token.",
    )
    admin_token: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="Admin token",
        description="Where the admin API wants another one. Empty: the same token.",
    )
    workflow_timeout_seconds: int = Field(
        default=86_400,
        ge=1,
        le=2_592_000,
        title="Longest run of a workflow (s)",
        description="How long a Restate workflow may take unless a curator sets another timeout. Service and "
        "object handlers have the product's usual timeout.",
        json_schema_extra=RUNS,
    )
    cancel_grace_seconds: float = Field(
        default=10.0,
        ge=0,
        le=86_400,
        title="Grace after a cancel (s)",
        description="An invocation that is still running this long after its cancellation is killed, which "
        "leaves out its compensations. 0: never.",
        json_schema_extra=RUNS,
    )
    min_poll_seconds: settings.MinPollSeconds = 1.0
    request_timeout_seconds: settings.RequestTimeoutSeconds = 30.0
    max_response_bytes: settings.MaxResponseBytes = 10_000_000
    verify_tls: settings.VerifyTls = True
    ca_file: settings.CaFile = ""
