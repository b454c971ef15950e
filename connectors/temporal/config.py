"""The configuration of a Temporal source, and the file in which it declares its workflows."""

import asyncio
import math
import os
import stat
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from connectors import settings
from connectors.definitions import (
    MAX_SECONDS,
    OUTPUT_SCHEMA,
    Interaction,
    RejectedDefinition,
    WorkflowDefinition,
    explain,
)
from connectors.errors import Misconfigured
from connectors.formats import yaml
from connectors.formats.yaml import MAX_BYTES, Path, Problem, UnusableText, message_of, suggest
from connectors.network.policy import address_objection
from connectors.settings import TRUST, FieldProblem, SourceConfig, hint
from connectors.temporal.declarations import (
    OTHER_NAMES,
    WITH_SECRETS,
    AsksDeclaration,
    CacheBlock,
    DefinitionsFile,
    InputDeclaration,
    InteractionDeclaration,
    Note,
    OutputDeclaration,
    Schema,
    TemporalBlock,
    WorkflowDeclaration,
    object_schema,
)

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
    pause_enabled: bool = Field(
        default=False,
        title="Workflows can be paused",
        description="The service lets clients pause workflows, which its setting "
        "frontend.WorkflowPauseEnabled decides. It is off by default.",
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
    asks: AsksDeclaration | None = None
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
        """Returns True if the workflow id contains the execution's id, and so is unique."""
        return EXECUTION_ID in placeholders_in(self.workflow_id)


def settings_of(metadata: dict[str, Any]) -> TemporalSettings:
    """Raises Misconfigured."""
    try:
        return TemporalSettings.model_validate(metadata.get(METADATA_KEY) or {})
    except ValidationError as error:
        raise Misconfigured(f"The workflow's Temporal settings cannot be used: {explain(error)}.") from None


def placeholders_in(recipe: str) -> list[str]:
    """Raises ValueError for an invalid template."""
    names = settings.names_in_braces(recipe)
    if not all(name.isidentifier() for name in names):
        raise ValueError("must have only names of arguments in braces")
    return names


CONNECTION = "temporal"
DEFINITIONS = "definitions"
NO_DEFINITIONS = (
    "without them the source has no workflows; import a file with manage.py import_temporal, or with "
    '"Import Temporal file" in the admin'
)
PLACES: dict[str, Path] = {
    "host_port": ("hostPort",),
    "namespace": ("namespace",),
    "environment": ("environment",),
    "timeout_seconds": ("timeout",),
    "retry_initial_seconds": ("retryOptions", "initialInterval"),
    "retry_maximum_seconds": ("retryOptions", "maximumInterval"),
    "retry_maximum_attempts": ("retryOptions", "maximumAttempts"),
    "retry_backoff": ("retryOptions", "backoffCoefficient"),
    "oauth_client_id": ("auth", "clientID"),
    "oauth_client_secret": ("auth", "clientSecret"),
    "oauth_audience": ("auth", "audience"),
    "oauth_scope": ("auth", "scope"),
    "oauth_url": ("auth", "oauth2URL"),
    "api_key": ("auth", "apiKey"),
    "tls_cert_file": ("tls", "certPath"),
    "tls_key_file": ("tls", "keyPath"),
    "tls_ca_file": ("tls", "caPath"),
    "tls_server_name": ("tls", "serverName"),
    "tls_insecure_skip_verify": ("tls", "insecureSkipVerify"),
}
NO_ARGUMENTS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}


class TemporalConfig(ServiceSettings):
    """Flat, so that each setting is a field of the admin's form."""

    definitions: str = Field(
        default="",
        title="Definitions",
        description="The workflows that the service runs, in YAML. Leave empty to read them from the file "
        "below.",
        json_schema_extra=hint(multiline=True),
    )
    definitions_file: str = Field(
        default="",
        title="Definitions file",
        description="The absolute path of a .yaml or .yml file on this server. It is read at every refresh.",
    )

    @field_validator("definitions")
    @classmethod
    def _readable(cls, definitions: str, info: ValidationInfo) -> str:
        if not definitions.strip():
            return definitions
        connection = _read_text(definitions, info.data.get("default_task_queue", "")).connection
        if connection is not None and connection.secrets:
            # Settings are shown in clear text.
            names = " and ".join(f"temporal.{name_in_file(name)}" for name in connection.secrets)
            raise ValueError(
                f"{names}: secrets are not allowed here. Remove it and enter it in its own field, which is "
                "encrypted"
            )
        return definitions


def declares_nothing(config: TemporalConfig) -> bool:
    """Temporal cannot list workflow types, so a source without declarations has no workflows."""
    return not (config.definitions.strip() or config.definitions_file)


async def list_declared(config: TemporalConfig) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
    """Raises Misconfigured with each problem's line and key for unusable definitions."""
    if declares_nothing(config):
        yield RejectedDefinition(position=0, id=DEFINITIONS, name=DEFINITIONS, reason=NO_DEFINITIONS)
        return
    declared = await asyncio.to_thread(read_declared, config)
    for workflow in declared.workflows:
        yield workflow
    connection = declared.connection.settings if declared.connection else {}
    said = config.model_validate(config.model_dump() | connection)
    names = [name for name in connection if getattr(said, name) != getattr(config, name)]
    if differing := ", ".join(map(name_in_file, names)):
        yield RejectedDefinition(
            position=len(declared.workflows),
            id=CONNECTION,
            name=CONNECTION,
            reason="The connection in the file differs from the source's settings, which take precedence: "
            f"{differing}. Import the file again to apply it.",
        )


def read_declared(config: TemporalConfig) -> "Declared":
    try:
        if config.definitions.strip():
            return _read_text(config.definitions, config.default_task_queue)
        if config.definitions_file:
            content = read_file(config.definitions_file)
            return read_definitions(content, default_task_queue=config.default_task_queue)
    except UnusableText as error:
        what = "The definitions" if config.definitions.strip() else f"The file {config.definitions_file}"
        raise Misconfigured(f"{what} cannot be used: {error}") from None
    return Declared(workflows=[], connection=None, cache=None, entries={})


def read_file(path: str) -> bytes:
    """Reads at most MAX_BYTES + 1 bytes. Raises Misconfigured for an unusable path."""
    if not os.path.isabs(path) or not path.endswith((".yaml", ".yml")):
        raise Misconfigured(f"{path}: must be an absolute path to a .yaml or .yml file.")
    try:
        # Without this flag, opening a pipe blocks until it has a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        pass
    except (OSError, ValueError) as error:
        raise Misconfigured(f"{path}: {_reason(error)}.") from None
    raise Misconfigured(f"{path}: not a regular file.")


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or "cannot be opened"


@lru_cache(maxsize=4)
def _read_text(definitions: str, default_task_queue: str) -> "Declared":
    return read_definitions(
        definitions.encode("utf-8", "surrogatepass"), default_task_queue=default_task_queue
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredConnection:
    """The source settings of the file's connection block."""

    settings: dict[str, Any]  # Without secrets
    secrets: dict[str, str] = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    workflows: list[WorkflowDefinition]
    connection: DeclaredConnection | None  # None without a connection block
    cache: CacheBlock | None
    entries: dict[str, dict[str, Any]]  # The workflows' mappings, each with its effective cache setting


def read_definitions(content: bytes, *, default_task_queue: str = "") -> "Declared":
    """Raises UnusableText with each problem's line and key."""
    document = yaml.read_document(content, private=WITH_SECRETS)
    problems = [*document.problems]

    def note(place: Path, message: str) -> None:
        problems.append(document.problem(place, message))

    file = _validate(document, problems)
    reading = WorkflowReading(note, file.cache, default_task_queue)
    workflows = [reading.definition(name, declared) for name, declared in file.workflows.items()]
    connection = None if file.temporal is None else read_connection(file.temporal, note=note)
    if problems:
        raise UnusableText(problems)
    return Declared(
        workflows=[workflow for workflow in workflows if workflow is not None],
        connection=connection,
        cache=file.cache,
        entries=_entries(document.value["workflows"], file),
    )


def _validate(document: yaml.Document, problems: list[Problem]) -> DefinitionsFile:
    """The file without invalid parts. Raises UnusableText if nothing is left."""
    try:
        return DefinitionsFile.model_validate(document.value)
    except ValidationError as error:
        problems += yaml.problems_of(
            error, document, DefinitionsFile, private=WITH_SECRETS, other_names=OTHER_NAMES
        )
        faulty = [tuple(one["loc"]) for one in error.errors(include_url=False, include_input=False)]
    try:
        return DefinitionsFile.model_validate(_without(document.value, faulty))
    except ValidationError:
        raise UnusableText(problems) from None


def _without(value: Any, faulty: list[Path]) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get("workflows"), dict):
        return value
    workflows = {place[1] for place in faulty if len(place) > 1}
    blocks = {place[0] for place in faulty if place}
    kept = {name: entry for name, entry in value["workflows"].items() if name not in workflows}
    return {name: block for name, block in value.items() if name not in blocks} | {"workflows": kept}


def _entries(raw: dict[str, dict[str, Any]], file: DefinitionsFile) -> dict[str, dict[str, Any]]:
    entries = {}
    for name, declared in file.workflows.items():
        seconds = seconds_cached(declared, file.cache)
        entries[name] = raw[name] | {"cache": {"ttl": f"{seconds}s"} if seconds else False}
    return entries


def read_connection(block: TemporalBlock, *, note: Note) -> DeclaredConnection:
    said = dict(_settings_in(block))
    secrets = {name: value.get_secret_value() for name, value in said.items() if isinstance(value, SecretStr)}
    settings = {name: value for name, value in said.items() if name not in secrets}
    # The file may omit a secret, which is stored apart.
    assumed = {"oauth_client_secret": "stored apart"} if "oauth_url" in said else {}
    try:
        ServiceSettings.model_validate(assumed | settings | secrets)
    except ValidationError as error:
        for one in error.errors(include_url=False, include_input=False):
            place = PLACES[str(one["loc"][0])] if one["loc"] else ()
            note(("temporal", *place), message_of(one))
    return DeclaredConnection(settings=settings, secrets=secrets)


def name_in_file(setting: str) -> str:
    """`retryOptions.maximumAttempts` for `retry_maximum_attempts`."""
    return ".".join(map(str, PLACES[setting]))


SETTING_OF = {name: ours for ours, place in PLACES.items() for name in (str(place[-1]), name_in_file(ours))}
"""By the names in a file: `clientSecret` as well as `auth.clientSecret`."""


def _settings_in(block: TemporalBlock) -> Iterator[tuple[str, Any]]:
    for name, place in PLACES.items():
        value: Any = block
        for key in place:
            if value is not None:
                fields = {alias: field for field, alias in yaml.keys_of(type(value)).items()}
                value = getattr(value, fields[str(key)])
        if value is not None:
            yield name, value


def seconds_cached(declared: WorkflowDeclaration, cache: CacheBlock | None) -> int | None:
    """The workflow's own ttl, else the file's; None if either disables caching."""
    own = declared.cache
    if (cache is not None and not cache.enabled) or (own is not None and not own.enabled):
        return None
    ttl = (own.ttl if own else None) or (cache.ttl if cache else None)
    return None if ttl is None else math.ceil(ttl)


@dataclass(frozen=True, slots=True)
class WorkflowReading:
    """Turns declarations into definitions, and notes problems with their places."""

    note: Note
    cache: CacheBlock | None
    default_task_queue: str

    def definition(self, name: str, declared: WorkflowDeclaration) -> WorkflowDefinition | None:
        place: Path = ("workflows", name)
        if not (declared.task_queue or self.default_task_queue):
            self.note((*place, "taskQueue"), "required, but missing")
        input_schema = self._input_schema(declared.input, (*place, "input"))
        said = _said(category=declared.category, version=declared.version) | {
            "id": name,
            "name": name,
            "title": declared.title or "",
            "description": _description(declared),
            "tags": declared.tags,
            "inputSchema": input_schema,
            "outputSchema": self._output_schema(declared.output, (*place, "output")),
            "timeout_seconds": declared.timeout and math.ceil(declared.timeout),
            "cache_seconds": seconds_cached(declared, self.cache),
            "queries": self._interactions(declared.queries, (*place, "queries")),
            "signals": self._interactions(declared.signals, (*place, "signals")),
            "metadata": {
                METADATA_KEY: self._settings(declared, input_schema, place),
                **_typed(declared.output),
            },
        }
        try:
            definition = WorkflowDefinition.model_validate(said)
        except ValidationError as error:
            self.note(place, _first_reason(error))
            return None
        if definition.name != name:
            self.note(place, "a name must not have spaces around it or contain control characters")
        return definition

    def _input_schema(self, declared: InputDeclaration | None, place: Path) -> Schema:
        if declared is None or not _takes_input(declared):
            if declared is not None and declared.fields:
                self.note((*place, "fields"), "must be left out if the type is none")
            return NO_ARGUMENTS
        if declared.fields is not None:
            fields = (*place, "fields")
            return object_schema(declared.fields, title=_title(declared), place=fields, note=self.note)
        if declared.positional:
            self.note((*place, "positional"), "requires fields, which set the order")
        return _said(title=_title(declared)) | {"type": "object"}

    def _output_schema(self, declared: OutputDeclaration | None, place: Path) -> Schema | None:
        """Reads only declared fields, which are a promise. See `_typed` for a type without them."""
        if declared is None or declared.fields is None:
            return None
        fields = (*place, "fields")
        schema = object_schema(declared.fields, title=_title(declared), place=fields, note=self.note)
        # A result may have more fields than it promises.
        return schema | {"additionalProperties": True}

    def _interactions(self, declared: Mapping[str, InteractionDeclaration], place: Path) -> list[Interaction]:
        interactions = []
        for name, one in declared.items():
            fields = (*place, name, "fields")
            schema = None
            if one.fields is not None:
                schema = object_schema(one.fields, title=None, place=fields, note=self.note)
            said = {"name": name, "description": one.description, "inputSchema": schema}
            try:
                interactions.append(Interaction.model_validate(said))
            except ValidationError as error:
                self.note((*place, name), _first_reason(error))
        return interactions

    def _settings(self, declared: WorkflowDeclaration, input_schema: Schema, place: Path) -> dict[str, Any]:
        """Returns those that differ from the defaults of `TemporalSettings`."""
        takes_input = declared.input is not None and _takes_input(declared.input)
        positional = declared.input is not None and declared.input.positional
        settings = _said(
            task_queue=declared.task_queue,
            workflow_id=declared.workflow_id,
            workflow_id_defaults=self._defaults(
                declared.workflow_id or "", input_schema, (*place, "workflowId")
            ),
            id_reuse_policy=_snake_case(declared.id_reuse_policy),
            id_conflict_policy=_snake_case(declared.id_conflict_policy),
            progress_query=declared.progress_query,
            asks=declared.asks and declared.asks.model_dump(exclude_none=True),
            input=("positional" if positional else None) if takes_input else "none",
            input_order=list(input_schema.get("properties", {})) if positional else None,
        )
        try:
            TemporalSettings.model_validate(settings)
        except ValidationError as error:
            self.note(place, _first_reason(error))
        return settings

    def _defaults(self, recipe: str, input_schema: Schema, place: Path) -> dict[str, Any] | None:
        """Returns the defaults of the recipe's optional fields, and notes fields that it cannot have."""
        try:
            names = set(placeholders_in(recipe)) - {EXECUTION_ID, WORKFLOW}
        except ValueError as error:
            self.note(place, str(error))
            return None
        # The properties of an input without fields are unknown.
        fields, required = input_schema.get("properties"), input_schema.get("required", [])
        if fields is None:
            return None
        for name in sorted(names):
            if objection := _objection(name, input_schema):
                self.note(place, f"{{{name}}} {objection}")
        optional = names.intersection(fields).difference(required)
        return {name: fields[name]["default"] for name in optional if _has_default(fields[name])} or None


def _objection(name: str, input_schema: Schema) -> str:
    """Returns why a workflow id cannot contain this field; empty if every call has a value for it."""
    fields: Schema = input_schema["properties"]
    if name not in fields:
        suggested = suggest(name, [EXECUTION_ID, WORKFLOW, *fields])
        return "is unknown; " + (f"did you mean {{{suggested}}}?" if suggested else "there is no such field")
    if fields[name].get("type") not in ("string", "number", "integer"):
        return "must be a field of the type string, number or integer, and not nullable"
    if name not in input_schema.get("required", []) and not _has_default(fields[name]):
        return "is optional; the field must be required or have a default"
    return ""


def _has_default(schema: Schema) -> bool:
    default = schema.get("default")
    return isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""


def _title(declared: InputDeclaration | OutputDeclaration) -> str | None:
    return None if declared.type in ("object", "any") else declared.type


def _takes_input(declared: InputDeclaration) -> bool:
    return (declared.type or "").lower() != "none" and bool(declared.type or declared.fields)


JSON_TYPES = {
    **dict.fromkeys(("string", "number", "integer", "boolean", "array", "object")),
    **dict.fromkeys(("int", "int32", "int64"), "integer"),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    "bool": "boolean", "list": "array", "map": "object", "dict": "object",
}  # fmt: skip


def _typed(output: OutputDeclaration | None) -> dict[str, Schema]:
    """Returns as metadata the schema of a result of a known type: results are checked against it, and
    delivered whether they match or not. Other names are of types that only the workflow knows."""
    if output is None or output.type is None or output.fields is not None:
        return {}
    name = "array" if output.type.startswith("[]") else output.type.lower().partition("[")[0]
    return {OUTPUT_SCHEMA: {"type": JSON_TYPES[name] or name}} if name in JSON_TYPES else {}


def _description(declared: WorkflowDeclaration) -> str:
    output = declared.output
    if output is None or not (output.type or output.description):
        return declared.purpose
    returns = f"Returns {output.type}" if output.type else "Returns"
    result = f"{returns}: {output.description}" if output.description else returns
    return f"{declared.purpose}\n\n{result}" + ("" if result.endswith(".") else ".")


def _first_reason(error: ValidationError) -> str:
    one = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, one["loc"]))
    return f"{where}: {message_of(one)}" if where else message_of(one)


def _said(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _snake_case(policy: str | None) -> str | None:
    """`RejectDuplicate` as `reject_duplicate`."""
    if policy is None:
        return None
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in policy).removeprefix("_")
