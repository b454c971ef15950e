"""Settings of a Temporal service, and of each workflow."""

from string import Formatter
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from connectors import settings
from connectors.definitions import MAX_SECONDS, explain
from connectors.errors import Misconfigured
from connectors.network.policy import address_objection
from connectors.settings import TRUST, FieldProblem, SourceConfig, hint

TLS = hint(group="TLS")
OAUTH = hint(group="OAuth")
REQUESTS = hint(group="Requests and retries")
RUNS = hint(group="Limits of runs")
METADATA_KEY = "temporal"
EXECUTION_ID = "execution_id"
WORKFLOW = "workflow"


def normalise_host_port(text: str) -> str:
    """`host:port`, with Temporal's default port. Raises ValueError."""
    text = text.strip()
    if "://" in text or "/" in text or "@" in text:
        raise ValueError(
            "Enter host:port, such as temporal.example.com:7233, without https:// and without a path."
        )
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") > 1:  # An IPv6 address without a port
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    port = port or "7233"
    if not host or not (host.isascii() and host.isprintable()) or " " in host:
        raise ValueError("The address has no host. Enter host:port, such as localhost:7233.")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError("The port must be a number from 1 to 65535.")
    if objection := address_objection(host):
        raise ValueError(f"The address is {host}, {objection}.")
    return f"[{host}]:{int(port)}" if ":" in host else f"{host}:{int(port)}"


class ServiceSettings(SourceConfig):
    host_port: Annotated[str, AfterValidator(normalise_host_port)] = Field(
        title="Address",
        description="Host and port of Temporal's frontend, such as localhost:7233 or "
        "my-namespace.a1b2c.tmprl.cloud:7233.",
        json_schema_extra=hint(address=True),
    )
    namespace: str = Field(
        default="default",
        min_length=1,
        max_length=255,
        title="Namespace",
        description="The namespace in which the workflows run.",
    )
    environment: Literal["local", "remote"] = Field(
        default="local",
        title="Environment",
        description="local: TLS only if a field below requires it. remote: TLS unless it is turned off.",
        json_schema_extra=hint(address=True),
    )
    tls: bool | None = Field(
        default=None,
        title="TLS",
        description="Leave empty to turn TLS on in the environment remote, or with an API key, OAuth or "
        "any TLS file below.",
        json_schema_extra=TRUST,
    )
    tls_cert_file: str = Field(
        default="",
        title="Client certificate file",
        description="The path of a PEM file on this server, for services that require mutual TLS. A "
        "renewed file is reloaded automatically.",
        json_schema_extra=TLS,
    )
    tls_key_file: str = Field(
        default="",
        title="Client key file",
        description="The path of a PEM file on this server with the private key of the client certificate.",
        json_schema_extra=TLS,
    )
    tls_ca_file: str = Field(
        default="",
        title="CA file",
        description="The path of a PEM file on this server with the certificate authorities to trust. "
        "Leave empty to use the system's certificate authorities.",
        json_schema_extra=TRUST,
    )
    tls_server_name: str = Field(
        default="",
        max_length=255,
        title="Server name",
        description="The name that the service's certificate must have. Leave empty to use the host of the "
        "address.",
        json_schema_extra=TRUST,
    )
    tls_insecure_skip_verify: bool = Field(
        default=False,
        title="Skip verification (not supported)",
        description="Other clients have this option. This product always verifies the service's "
        "certificate. For a self-signed certificate, enter its authority as the CA file and its name as "
        "the server name.",
        json_schema_extra=TLS,
    )
    api_key: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="API key",
        description="The API key of Temporal Cloud or of a gateway, sent as a bearer token.",
    )
    oauth_url: settings.OAuthUrl = Field(default="", json_schema_extra=hint(address=True, group="OAuth"))
    oauth_client_id: settings.OAuthClientId = Field(default="", json_schema_extra=OAUTH)
    oauth_client_secret: settings.OAuthClientSecret = Field(default=SecretStr(""), json_schema_extra=OAUTH)
    oauth_audience: settings.OAuthAudience = Field(default="", json_schema_extra=OAUTH)
    oauth_scope: settings.OAuthScope = Field(default="", json_schema_extra=OAUTH)
    timeout_seconds: float = Field(
        default=5.0,
        gt=0,
        le=300,
        title="Timeout (s)",
        description="The time limit for connecting and for each request to the service.",
        json_schema_extra=REQUESTS,
    )
    retry_initial_seconds: float = Field(
        default=0.1,
        gt=0,
        le=60,
        title="First retry after (s)",
        description="The delay before the first retry. Only requests that do not change anything are "
        "retried, when the service is busy or restarting.",
        json_schema_extra=REQUESTS,
    )
    retry_maximum_seconds: float = Field(
        default=10.0,
        gt=0,
        le=300,
        title="Longest pause between retries (s)",
        description="The maximum delay between two attempts of one request.",
        json_schema_extra=REQUESTS,
    )
    retry_maximum_attempts: int = Field(
        default=5,
        ge=1,
        le=100,
        title="Attempts",
        description="The maximum number of attempts of one request, including the first. Enter 1 to "
        "disable retries.",
        json_schema_extra=REQUESTS,
    )
    retry_backoff: float = Field(
        default=2.0,
        ge=1,
        le=10,
        title="Retry backoff",
        description="The factor by which the delay grows with each retry.",
        json_schema_extra=REQUESTS,
    )
    default_task_queue: str = Field(
        default="",
        max_length=255,
        title="Default task queue",
        description="The task queue of workflows whose definition does not name one.",
    )
    default_execution_timeout_seconds: float = Field(
        default=86_400.0,
        ge=1,
        le=MAX_SECONDS,
        title="Longest run (s)",
        description="Temporal ends a run after this time, even if this product is down.",
        json_schema_extra=RUNS,
    )
    cancel_grace_seconds: float = Field(
        default=10.0,
        ge=0,
        le=86_400,
        title="Grace after a cancel (s)",
        description="A run that is still running this long after its cancellation is terminated. Enter 0 "
        "to never terminate runs.",
        json_schema_extra=RUNS,
    )
    max_output_bytes: int = Field(
        default=10_000_000,
        ge=1_000,
        le=100_000_000,
        title="Largest result (bytes)",
        description="Larger results are not stored, which the execution reports.",
        json_schema_extra=RUNS,
    )

    @field_validator("tls_insecure_skip_verify")
    @classmethod
    def _always_verified(cls, skip: bool) -> bool:
        if skip:
            raise ValueError(
                "cannot be turned on: certificates are always verified. For a self-signed certificate, "
                "enter its authority as the CA file, and its name as the server name if it differs from "
                "the host."
            )
        return skip

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise FieldProblem(
                "tls_cert_file", "The client certificate file and the client key file must be set together."
            )
        settings.check_oauth(self, beside="api_key", called="an API key")
        if self.tls is False and self._tls_files:
            raise FieldProblem(
                "tls",
                "TLS is turned off, but TLS files or a server name are set. Turn TLS on or remove them.",
            )
        return self

    @property
    def uses_tls(self) -> bool:
        if self.tls is not None:
            return self.tls
        credentials = self.api_key.get_secret_value() or self.oauth_url
        return self.environment == "remote" or bool(credentials) or self._tls_files

    @property
    def _tls_files(self) -> bool:
        return bool(self.tls_cert_file or self.tls_ca_file or self.tls_server_name)


class TemporalSettings(BaseModel):
    """How Temporal runs a workflow: its `metadata["temporal"]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_queue: str = Field(default="", max_length=255)  # Empty: the source's default task queue
    workflow_id: str = Field(default="{execution_id}", min_length=1, max_length=255)
    """Template of workflow ids with {execution_id}, {workflow} and names of arguments."""
    workflow_id_defaults: dict[str, str | int | float] = Field(default_factory=dict)
    """For omitted arguments in the template."""
    id_reuse_policy: Literal["", "allow_duplicate", "allow_duplicate_failed_only", "reject_duplicate"] = ""
    """Whether an id may be reused after its run has ended; empty: only ids without ours."""
    id_conflict_policy: Literal["", "fail", "use_existing", "terminate_existing"] = ""
    """For a start whose id has a running run; empty: the start fails."""
    input: Literal["object", "none", "positional"] = "object"
    """All arguments as one object, nothing, or each separately in `input_order`."""
    input_order: list[str] = Field(default_factory=list)
    progress_query: str = Field(default="", max_length=255)
    """Query for the workflow's progress; empty: heartbeats show it."""
    execution_timeout: float | None = Field(default=None, gt=0, le=MAX_SECONDS)
    """Seconds for the chain of runs; None: until the execution's deadline."""
    run_timeout: float | None = Field(default=None, gt=0, le=MAX_SECONDS)
    task_timeout: float | None = Field(default=None, gt=0, le=120)

    @field_validator("workflow_id")
    @classmethod
    def _readable_recipe(cls, recipe: str) -> str:
        placeholders_in(recipe)
        return recipe

    @property
    def id_is_ours(self) -> bool:
        """Whether the workflow id contains the execution's id, and so is unique."""
        return EXECUTION_ID in placeholders_in(self.workflow_id)


def settings_of(metadata: dict[str, Any]) -> TemporalSettings:
    """Raises Misconfigured."""
    try:
        return TemporalSettings.model_validate(metadata.get(METADATA_KEY) or {})
    except ValidationError as error:
        raise Misconfigured(f"The workflow's Temporal settings cannot be used: {explain(error)}.") from None


def placeholders_in(recipe: str) -> list[str]:
    """Names in braces, in order. Raises ValueError for an invalid template."""
    try:
        parts = list(Formatter().parse(recipe))
    except ValueError:
        raise ValueError("has an unmatched brace") from None
    names = [name for _, name, _, _ in parts if name is not None]
    if any(specification or conversion for _, _, specification, conversion in parts):
        raise ValueError("must have only names in braces, without ':' or '!'")
    if not all(name.isidentifier() for name in names):
        raise ValueError("must have only names of arguments in braces")
    return names
