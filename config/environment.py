"""Every environment variable of the product, with type, default and meaning. A test compares the README's
table of settings with these fields."""

import difflib
import ipaddress
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from annotated_types import Ge, Gt, Le
from pydantic import AliasChoices, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from connectors.allowlists import StdioCommand
from connectors.network.policy import AllowedHosts, normalise_base_url

PREFIX = "CATALOGUE_"
DATABASES = ("sqlite", "postgres", "postgresql")
BROKERS = ("filesystem", "redis", "rediss", "amqp", "amqps")
SHORTEST_KEY = 32
HOST = re.compile(r"\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?|\[[0-9A-Fa-f:.]+\]")
BASE_DIR = Path(__file__).resolve().parent.parent
GROUP = "live"  # Marks a changeable field, with its heading


def _variable(name: str, default: Any, description: str, *, live: str = "", **bounds: Any) -> Any:
    """`live`: the heading under which it can be changed while the product runs."""
    extra: Any = {"live": live} if live else None
    alias = AliasChoices(name)
    return Field(
        default=default, validation_alias=alias, description=description, json_schema_extra=extra, **bounds
    )


class Environment(BaseSettings):
    """Read once, by `config.settings`; no other module reads `os.environ`."""

    model_config = SettingsConfigDict(case_sensitive=True, frozen=True, env_ignore_empty=True)

    data_dir: Path = _variable(
        "CATALOGUE_DATA_DIR",
        BASE_DIR / "var",
        "Folder of the embedded database, broker and generated secrets.",
    )
    database_url: SecretStr = _variable(
        "DATABASE_URL",
        SecretStr(""),
        "`sqlite:///path` or `postgres://user:password@host/name`. Default: SQLite in the data folder.",
    )
    celery_broker_url: SecretStr = _variable(
        "CELERY_BROKER_URL",
        SecretStr("filesystem://"),
        "`redis://`, `amqp://` or the default, a broker in the data folder.",
    )
    secret_key: SecretStr = _variable(
        "SECRET_KEY",
        SecretStr(""),
        "Signs sessions and encrypts sources' credentials. Default: made once in the data folder.",
    )
    secret_key_fallbacks: SecretStr = _variable(
        "SECRET_KEY_FALLBACKS",
        SecretStr(""),
        "Former values of `SECRET_KEY`, comma-separated, that still count; docs/security.md says when.",
    )
    port: int = _variable("PORT", 8000, "Port of the web server.", ge=1, le=65535)
    public_url: str = _variable(
        "CATALOGUE_PUBLIC_URL", "", "Address that people and clients use. Default: `http://localhost:PORT`."
    )
    allowed_hosts: str = _variable(
        "CATALOGUE_ALLOWED_HOSTS", "", "More host names, comma-separated, that requests may name in `Host`."
    )
    trusted_proxies: str = _variable(
        "CATALOGUE_TRUSTED_PROXIES",
        "",
        "Addresses or networks of proxies, comma-separated, whose `X-Forwarded-For` is believed.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = _variable(
        "LOG_LEVEL", "INFO", "Least severity that is logged."
    )
    log_format: Literal["text", "json"] = _variable(
        "LOG_FORMAT", "text", "`text` for people, `json` for log collectors."
    )
    debug: bool = _variable(
        "CATALOGUE_DEBUG", False, "Django's debug pages. Never on a machine that others reach."
    )
    discovery_enabled: bool = _variable(
        "CATALOGUE_DISCOVERY_ENABLED",
        True,
        "`false` stops all scheduled discovery; refreshing by hand still works.",
        live="Discovery and starts",
    )
    discovery_interval: int = _variable(
        "CATALOGUE_DISCOVERY_INTERVAL",
        300,
        "Seconds between two listings of a source; 0 = only by hand.",
        ge=0,
        le=604_800,
        live="Discovery and starts",
    )
    retry_attempts: int = _variable(
        "CATALOGUE_RETRY_ATTEMPTS",
        3,
        "Times that a failed listing, or a start which surely did not happen, is soon tried again.",
        ge=0,
        le=10,
        live="Discovery and starts",
    )
    execution_timeout: int = _variable(
        "CATALOGUE_EXECUTION_TIMEOUT",
        300,
        "Seconds after which a run is cancelled, where its workflow says nothing.",
        ge=1,
        le=2_592_000,
        live="Runs",
    )
    inline_wait: float = _variable(
        "CATALOGUE_INLINE_WAIT",
        50.0,
        "Seconds that a `tools/call` waits for its result before it answers with a handle.",
        ge=0,
        le=3600,
        live="Runs",
    )
    inline_result_characters: int = _variable(
        "CATALOGUE_INLINE_RESULT_CHARACTERS",
        100_000,
        "Longest result that an MCP answer carries whole; of a longer one, its beginning and a link.",
        ge=4_000,
        le=100_000_000,
    )
    inline_content_bytes: int = _variable(
        "CATALOGUE_INLINE_CONTENT_BYTES",
        4 * 1024 * 1024,
        "Bytes of pictures, sounds and files that an MCP answer carries; of what is more, a link.",
        ge=4_096,
        le=1024 * 1024 * 1024,
    )
    max_concurrent_executions: int = _variable(
        "CATALOGUE_MAX_CONCURRENT_EXECUTIONS",
        1000,
        "Runs at a time, of all sources; further calls wait in the queue. 0 = no limit.",
        ge=0,
        le=1_000_000,
        live="Limits",
    )
    max_concurrent_per_caller: int = _variable(
        "CATALOGUE_MAX_CONCURRENT_PER_CALLER",
        200,
        "The same for one token or user.",
        ge=0,
        le=1_000_000,
        live="Limits",
    )
    max_queued_executions: int = _variable(
        "CATALOGUE_MAX_QUEUED_EXECUTIONS",
        1000,
        'Calls that may wait in the queue; one more is answered with "busy, try again in N s".',
        ge=0,
        le=100_000,
        live="Limits",
    )
    max_queued_per_caller: int = _variable(
        "CATALOGUE_MAX_QUEUED_PER_CALLER",
        500,
        "The same for one token or user.",
        ge=0,
        le=100_000,
        live="Limits",
    )
    idempotency_hours: float = _variable(
        "CATALOGUE_IDEMPOTENCY_HOURS",
        24.0,
        "How long an idempotency key stands for its execution.",
        gt=0,
        le=8760,
        live="Runs",
    )
    reattach_seconds: float = _variable(
        "CATALOGUE_REATTACH_SECONDS",
        3600.0,
        "How long after a caller lost its connection an identical call of it joins the run that goes on.",
        ge=0,
        le=604_800,
        live="Runs",
    )
    reattach_result_seconds: float = _variable(
        "CATALOGUE_REATTACH_RESULT_SECONDS",
        120.0,
        "How long such a call gets the result of the run once that has ended, instead of another run.",
        ge=0,
        le=604_800,
        live="Runs",
    )
    status_check_interval: float = _variable(
        "CATALOGUE_STATUS_CHECK_INTERVAL",
        5.0,
        "Seconds between two polls of a young run for which no request waits, until runs of its workflow "
        "have taught better.",
        ge=1,
        le=3600,
        live="Runs",
    )
    max_request_bytes: int = _variable(
        "CATALOGUE_MAX_REQUEST_BYTES",
        4 * 1024 * 1024,
        "Largest request body that MCP and REST accept.",
        ge=1024,
        le=1024 * 1024 * 1024,
    )
    max_payload_bytes: int = _variable(
        "CATALOGUE_MAX_PAYLOAD_BYTES",
        10 * 1024 * 1024,
        "Largest input, output or raw answer that a record keeps whole.",
        ge=1024,
        le=1024 * 1024 * 1024,
    )
    stdio_commands: Annotated[dict[str, StdioCommand], NoDecode] = _variable(
        "CATALOGUE_STDIO_COMMANDS",
        {},
        "Commands that sources of MCP servers may start, as JSON: name to list of words; "
        "docs/upstream-mcp.md has more.",
    )
    http_tool_hosts: str = _variable(
        "CATALOGUE_HTTP_TOOL_HOSTS",
        "",
        "Host names and networks that are not public and that HTTP tools may reach, comma-separated, such as "
        "`billing.internal,10.1.0.0/16`.",
    )
    openai_base_url: str = _variable(
        "OPENAI_BASE_URL",
        "https://api.openai.com/v1",
        "The model server of `POST /workflow`: any that speaks the API of chat completions.",
    )
    openai_api_key: SecretStr = _variable("OPENAI_API_KEY", SecretStr(""), "Its key, where it wants one.")
    openai_model: str = _variable(
        "OPENAI_MODEL", "", "The model that chooses tools; without one `POST /workflow` says so."
    )
    model_timeout: float = _variable(
        "CATALOGUE_MODEL_TIMEOUT",
        60.0,
        "Seconds that one answer of the model may take.",
        gt=0,
        le=3600,
        live="Language model",
    )
    model_retries: int = _variable(
        "CATALOGUE_MODEL_RETRIES",
        2,
        "Times that the model is asked again when it is busy or cannot be reached.",
        ge=0,
        le=10,
        live="Language model",
    )
    model_context_tokens: int = _variable(
        "CATALOGUE_MODEL_CONTEXT_TOKENS",
        16_000,
        "Longest prompt, in estimated tokens; of more tools than fit, the model says which to describe.",
        ge=1_000,
        le=10_000_000,
    )
    model_answer_tokens: int = _variable(
        "CATALOGUE_MODEL_ANSWER_TOKENS", 2_000, "Longest answer of the model.", ge=100, le=1_000_000
    )
    page_size: int = _variable(
        "CATALOGUE_PAGE_SIZE",
        1000,
        "Tools, resources or prompts on a page of MCP's lists; many clients read only the first page.",
        ge=1,
        le=100_000,
    )
    list_ttl: float = _variable(
        "CATALOGUE_LIST_TTL",
        10.0,
        "Seconds that MCP clients may use a list before they ask again; subscribers are notified of changes.",
        ge=0,
        le=86_400,
    )

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value

    @field_validator("stdio_commands", mode="before")
    @classmethod
    def _commands_by_name(cls, value: Any) -> Any:
        try:
            commands = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            commands = None
        if not isinstance(commands, dict):
            raise ValueError('must be JSON such as {"files": ["npx", "-y", "some-mcp-server"]}')
        return {
            name: {"command": command} if isinstance(command, list) else command
            for name, command in commands.items()
        }

    @field_validator("http_tool_hosts")
    @classmethod
    def _lists_hosts(cls, value: str) -> str:
        AllowedHosts.parse(value)
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _lists_networks(cls, value: str) -> str:
        for network in filter(None, map(str.strip, value.split(","))):
            ipaddress.ip_network(network)
        return value

    @field_validator("database_url", "celery_broker_url")
    @classmethod
    def _names_a_known_server(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        schemes = DATABASES if info.field_name == "database_url" else BROKERS
        address = value.get_secret_value()
        if address and address.partition("://")[0] not in schemes:
            raise ValueError(f"must begin with one of {', '.join(f'{scheme}://' for scheme in schemes)}")
        return value

    @field_validator("secret_key")
    @classmethod
    def _cannot_be_guessed(cls, value: SecretStr) -> SecretStr:
        if 0 < len(value.get_secret_value()) < SHORTEST_KEY:
            raise ValueError(
                f"must have at least {SHORTEST_KEY} random characters, such as `openssl rand -base64 48` "
                "prints; with the present one in SECRET_KEY_FALLBACKS, what that encrypted can still be read"
            )
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _lists_host_names(cls, value: str) -> str:
        for host in filter(None, map(str.strip, value.split(","))):
            if host.strip("*.") == "":
                raise ValueError(
                    "must name hosts: if any would do, web pages could send their visitors' requests here; "
                    "`.example.com` stands for that host and all below it"
                )
            if not HOST.fullmatch(host):
                raise ValueError(
                    f"{host!r} is no host name or IP address; scheme, port and path are left out"
                )
        return value

    @field_validator("openai_base_url")
    @classmethod
    def _is_a_usable_address(cls, value: str) -> str:
        normalise_base_url(value)
        return value

    @field_validator("public_url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("must look like https://catalogue.example.com")
        return value.rstrip("/")

    @property
    def address(self) -> str:
        """Without a trailing slash."""
        return self.public_url or f"http://localhost:{self.port}"


def read_environment() -> Environment:
    """Exits with one sentence per mistake."""
    problems: list[str] = []
    environment, known = None, variable_names()
    for name in sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known):
        close = difflib.get_close_matches(name, known, n=1)
        suggestion = f"; did you mean {close[0]}?" if close else ""
        problems.append(f"{name}: no such setting{suggestion}.")
    try:
        environment = Environment()
    except ValidationError as error:
        problems += [_sentence(str(item["loc"][0]), item["msg"]) for item in error.errors()]
    if problems or environment is None:
        sys.exit("Configuration error:\n" + "\n".join(f"  {problem}" for problem in problems))
    return environment


def variable_names() -> list[str]:
    """In the order of the fields."""
    return [str(field.validation_alias.choices[0]) for field in Environment.model_fields.values()]  # type: ignore[union-attr]


def _sentence(name: str, complaint: str) -> str:
    fields = zip(variable_names(), Environment.model_fields.values(), strict=True)
    secret = {variable for variable, field in fields if field.annotation is SecretStr}
    value = os.environ.get(name, "")
    # An address may contain a password.
    shown = "a hidden value" if name in secret or "@" in value else repr(value)
    return f"{name}: {complaint.removeprefix('Value error, ')} (got {shown})"


class LiveSettings(dict[str, Any]):
    """Values by name, with changes applied at each reading; a copy has the environment's values."""

    def __init__(self, values: Mapping[str, Any], overrides: Callable[[], Mapping[str, Any]] = dict) -> None:
        super().__init__(values)
        self.overrides = overrides  # Current changes; `catalogue.product_settings` provides them

    def __getitem__(self, name: str) -> Any:
        if name in LIVE_SETTINGS and name in (changed := self.overrides()):
            return changed[name]
        return super().__getitem__(name)

    def given(self, name: str) -> Any:
        return super().__getitem__(name)

    def __or__(self, other: Any) -> Self:  # type: ignore[override]
        """With other values of the environment."""
        values = {name: self.given(name) for name in self}
        return type(self)(values | other, self.overrides)


def _describe_live(name: str) -> dict[str, Any]:
    field = Environment.model_fields[name]
    assert isinstance(field.json_schema_extra, dict), "only fields that carry the mark are described"
    bounds: dict[str, Any] = {"minimum": None, "above": None, "maximum": None}
    for bound in field.metadata:
        match bound:
            case Ge(ge=least):
                bounds["minimum"] = least
            case Gt(gt=limit):
                bounds["above"] = limit
            case Le(le=most):
                bounds["maximum"] = most
    return {
        "name": name,
        "variable": field.validation_alias.choices[0],  # type: ignore[union-attr]
        "group": field.json_schema_extra[GROUP],
        "type": field.annotation,
        "description": field.description,
        **bounds,
    }


LIVE_SETTINGS: dict[str, dict[str, Any]] = {
    name: _describe_live(name)
    for name, field in Environment.model_fields.items()
    if isinstance(field.json_schema_extra, dict) and GROUP in field.json_schema_extra
}
"""Changeable settings in the order of the fields: `{name, variable, group, type, description,
minimum, above, maximum}`."""
