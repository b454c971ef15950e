"""Every environment variable of the product, with type, default and meaning. A test compares the table of
docs/settings.md with these fields."""

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

import dj_database_url
from annotated_types import Ge, Gt, Le
from pydantic import (
    AliasChoices,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from connectors.network.policy import (
    AllowedHosts,
    StdioCommand,
    check_issuer,
    endpoint_url,
    normalise_base_url,
)

PREFIX = "CATALOGUE_"
SETTINGS_DIR = "CATALOGUE_SETTINGS_DIR"
SECRETS = "CATALOGUE_SECRET_"  # Variables with secrets, which settings of sources refer to
DATABASES = ("sqlite", "postgres", "postgresql")
IN_MEMORY = ":memory:"
BROKERS = ("filesystem", "redis", "rediss", "amqp", "amqps")
SHORTEST_KEY = 32
HOST = re.compile(r"\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?|\[[0-9A-Fa-f:.]+\]")
BASE_DIR = Path(__file__).resolve().parent.parent
IS_CHECKOUT = (BASE_DIR / "pyproject.toml").exists()  # Else it is an installed wheel
COMMAND = ".venv/bin/python manage.py" if IS_CHECKOUT else "workflow-catalogue"
SCOPES = ("workflows:read", "workflows:run", "catalogue:read", "catalogue:admin")
GROUP = "live"  # Marks a changeable field, with its heading


def _default_data_dir() -> Path:
    if IS_CHECKOUT:
        return BASE_DIR / "var"
    from platformdirs import user_data_path

    return user_data_path("workflow-catalogue", appauthor=False)


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
        _default_data_dir(),
        "Folder of the embedded database, broker and generated secrets. An installed wheel uses the user's "
        "data folder instead.",
    )
    settings_dir: str = _variable(
        SETTINGS_DIR,
        "",
        "Folder whose files are settings, each named after its variable, such as `/run/secrets`. "
        "The environment comes first.",
    )
    database_url: SecretStr = _variable(
        "DATABASE_URL",
        SecretStr(""),
        "`sqlite:///path` or `postgres://user:password@host/name`. Default: SQLite in the data folder.",
    )
    database_connections: int = _variable(
        "CATALOGUE_DATABASE_CONNECTIONS",
        20,
        "Connections to PostgreSQL that a process opens at most; docs/sizing.md says how many the server has "
        "to allow.",
        ge=2,
        le=1_000,
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
    allowed_origins: str = _variable(
        "CATALOGUE_ALLOWED_ORIGINS",
        "",
        "Origins of web pages, comma-separated such as `https://inspector.example.com`, whose scripts may "
        "sign users in and call tools.",
    )
    trusted_proxies: str = _variable(
        "CATALOGUE_TRUSTED_PROXIES",
        "",
        "Addresses or networks of proxies, comma-separated, whose `X-Forwarded-For` is believed.",
    )
    oauth_issuer: str = _variable(
        "CATALOGUE_OAUTH_ISSUER",
        "",
        "Outside authorization server whose access tokens are good here too, as its tokens name it; "
        "docs/login.md has more.",
    )
    oauth_audiences: str = _variable(
        "CATALOGUE_OAUTH_AUDIENCES",
        "",
        "More audiences that its tokens may have, comma-separated. Those of `/mcp` and `/mcp/<toolset>` "
        "always count.",
    )
    oauth_token_types: str = _variable(
        "CATALOGUE_OAUTH_TOKEN_TYPES",
        "at+jwt",
        "What the `typ` of its tokens may be, comma-separated; some servers say `JWT`.",
    )
    oauth_client_id: str = _variable(
        "CATALOGUE_OAUTH_CLIENT_ID", "", "What the product is to it, to ask about tokens that are no JWT."
    )
    oauth_client_secret: SecretStr = _variable(
        "CATALOGUE_OAUTH_CLIENT_SECRET", SecretStr(""), "The secret of that client."
    )
    oauth_introspection_url: str = _variable(
        "CATALOGUE_OAUTH_INTROSPECTION_URL", "", "Where to ask. Default: as the server's metadata say."
    )
    oauth_user_claim: str = _variable(
        "CATALOGUE_OAUTH_USER_CLAIM",
        "",
        "Claim that names the user of a token whose subject is linked to none: `email`, if verified, or one "
        "that holds the user name.",
    )
    oauth_scopes: Annotated[dict[str, str], NoDecode] = _variable(
        "CATALOGUE_OAUTH_SCOPES",
        {},
        "Its scopes to ours, as JSON. Default: they have the same names.",
    )
    oauth_role_without_user: str = _variable(
        "CATALOGUE_OAUTH_ROLE_WITHOUT_USER",
        "",
        "Group whose rights tokens have that belong to no user. Default: they are refused.",
    )
    login_issuer: str = _variable(
        "CATALOGUE_LOGIN_ISSUER", "", "OpenID provider where people log in; docs/login.md has more."
    )
    login_client_id: str = _variable(
        "CATALOGUE_LOGIN_CLIENT_ID", "", "What the product is to the OpenID provider."
    )
    login_client_secret: SecretStr = _variable(
        "CATALOGUE_LOGIN_CLIENT_SECRET", SecretStr(""), "The secret of that client."
    )
    login_name: str = _variable(
        "CATALOGUE_LOGIN_NAME", "your company", 'Who runs it: the button says "Log in with ...".'
    )
    login_scopes: str = _variable(
        "CATALOGUE_LOGIN_SCOPES", "openid profile email", "Scopes that a login asks for."
    )
    login_user_claim: str = _variable(
        "CATALOGUE_LOGIN_USER_CLAIM",
        "",
        "Claim by which the first login finds its user: `email`, if verified, or one that holds the user "
        "name.",
    )
    login_creates_users: bool = _variable(
        "CATALOGUE_LOGIN_CREATES_USERS",
        False,
        "`true` makes a user at the first login of a person without one.",
    )
    login_groups_claim: str = _variable("CATALOGUE_LOGIN_GROUPS_CLAIM", "groups", "Claim that lists groups.")
    login_groups: Annotated[dict[str, str], NoDecode] = _variable(
        "CATALOGUE_LOGIN_GROUPS",
        {},
        'The provider\'s groups to groups here, as JSON such as `{"platform-team": "Curator"}`; set anew at '
        "each login.",
    )
    login_ends_at_provider: bool = _variable(
        "CATALOGUE_LOGIN_ENDS_AT_PROVIDER",
        False,
        "`true` sends people who log out on to the provider, to log out there too.",
    )
    login_hours: float = _variable(
        "CATALOGUE_LOGIN_HOURS", 12.0, "Hours after which people log in there again.", gt=0, le=8760
    )
    login_passwords: bool = _variable(
        "CATALOGUE_LOGIN_PASSWORDS", True, "`false` leaves the OpenID provider as the only way to log in."
    )
    second_factor: Literal["chosen", "staff"] = _variable(
        "CATALOGUE_SECOND_FACTOR",
        "chosen",
        "Who needs a second factor to log in with a password: `staff`, or those who have `chosen` one.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = _variable(
        "LOG_LEVEL", "INFO", "Least severity that is logged."
    )
    log_format: Literal["text", "json"] = _variable(
        "LOG_FORMAT", "text", "`text` for people, `json` for log collectors."
    )
    metrics_address: str = _variable(
        "CATALOGUE_METRICS_ADDRESS",
        "",
        "Address such as `0.0.0.0:9100` where a worker, or a web process besides `/metrics`, serves its own "
        "metrics to anybody who reaches it. Default: nowhere.",
    )
    metrics_tools: int = _variable(
        "CATALOGUE_METRICS_TOOLS",
        100,
        "Tools that have series of their own in the metrics, the oldest first; the rest are one series.",
        ge=0,
        le=10_000,
    )
    otlp_endpoint: str = _variable(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "",
        "Collector that gets traces (OTLP over HTTP), such as `http://localhost:4318`; without it none is "
        "made. The other OTEL_* variables count too; docs/observability.md has more.",
    )
    otlp_traces_endpoint: str = _variable(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", "The whole address for traces, instead."
    )
    otel_disabled: bool = _variable("OTEL_SDK_DISABLED", False, "`true` makes no traces after all.")
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
    calls_per_minute: int = _variable(
        "CATALOGUE_CALLS_PER_MINUTE",
        0,
        "Calls of workflows that one caller may make, with all tokens of a user together. 0 = no limit.",
        ge=0,
        le=1_000_000,
        live="Limits",
    )
    calls_at_once: int = _variable(
        "CATALOGUE_CALLS_AT_ONCE",
        0,
        "So many of them pass without a pause. 0 = ten seconds' worth.",
        ge=0,
        le=1_000_000,
        live="Limits",
    )
    tool_calls_per_minute: int = _variable(
        "CATALOGUE_TOOL_CALLS_PER_MINUTE",
        0,
        "Calls of one workflow by all callers together, where its page says nothing. 0 = no limit.",
        ge=0,
        le=1_000_000,
        live="Limits",
    )
    tool_calls_at_once: int = _variable(
        "CATALOGUE_TOOL_CALLS_AT_ONCE",
        0,
        "So many of them pass without a pause. 0 = ten seconds' worth.",
        ge=0,
        le=1_000_000,
        live="Limits",
    )
    token_days: int = _variable(
        "CATALOGUE_TOKEN_DAYS",
        90,
        "Days until a new access token expires, where nothing else is chosen.",
        ge=1,
        le=36_500,
        live="Access tokens",
    )
    max_token_days: int = _variable(
        "CATALOGUE_MAX_TOKEN_DAYS",
        0,
        "The most that may be chosen, except by those who may make tokens that never expire. 0 = no limit.",
        ge=0,
        le=36_500,
        live="Access tokens",
    )
    max_unapproved_per_caller: int = _variable(
        "CATALOGUE_MAX_UNAPPROVED_PER_CALLER",
        1000,
        "Calls of one token or user that may wait for a person's approval.",
        ge=1,
        le=100_000,
        live="Limits",
    )
    approval_hours: float = _variable(
        "CATALOGUE_APPROVAL_HOURS",
        24.0,
        "How long a call waits for approval before it expires.",
        gt=0,
        le=8760,
        live="Approval",
    )
    approve_own_calls: bool = _variable(
        "CATALOGUE_APPROVE_OWN_CALLS",
        False,
        "Whether approvers may approve calls that they, or tokens of theirs, made.",
        live="Approval",
    )
    approval_mail: Literal["off", "requests", "outcomes"] = _variable(
        "CATALOGUE_APPROVAL_MAIL",
        "requests",
        "What is sent by e-mail, given an EMAIL_HOST: `requests` to approvers, with `outcomes` also the "
        "outcome to the user behind the call; or `off`.",
    )
    approval_webhook_url: str = _variable(
        "CATALOGUE_APPROVAL_WEBHOOK_URL",
        "",
        "Address that gets each request for approval and each outcome; docs/approvals.md has the form.",
    )
    approval_webhook_secret: SecretStr = _variable(
        "CATALOGUE_APPROVAL_WEBHOOK_SECRET",
        SecretStr(""),
        "What these messages are signed with, at least 32 characters; the address needs it.",
    )
    email_host: str = _variable("EMAIL_HOST", "", "Mail server (SMTP). Empty: no e-mail is sent.")
    email_port: int = _variable("EMAIL_PORT", 587, "Its port.", ge=1, le=65535)
    email_host_user: str = _variable("EMAIL_HOST_USER", "", "Its user, where it wants one.")
    email_host_password: SecretStr = _variable("EMAIL_HOST_PASSWORD", SecretStr(""), "And the password.")
    email_security: Literal["starttls", "tls", "none"] = _variable(
        "EMAIL_SECURITY", "starttls", "How the connection is protected: `starttls`, `tls` or `none`."
    )
    email_from: str = _variable(
        "DEFAULT_FROM_EMAIL", "workflow-catalogue@localhost", "Sender of the product's e-mail."
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
    openai_api_key: SecretStr = _variable(
        "OPENAI_API_KEY",
        SecretStr(""),
        "Its key, where it wants one, or a reference to it; docs/security.md has those.",
    )
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

    oauth_enabled: bool = _variable(
        "CATALOGUE_OAUTH",
        True,
        "Whether MCP clients can sign users in through the browser; `false` leaves access tokens.",
    )
    oauth_registration: bool = _variable(
        "CATALOGUE_OAUTH_REGISTRATION",
        True,
        "Whether clients may register themselves (RFC 7591); a user's consent is needed in any case.",
    )
    oauth_client_documents: bool = _variable(
        "CATALOGUE_OAUTH_CLIENT_DOCUMENTS",
        True,
        "Whether clients may name a public https address that describes them, which is then read.",
    )
    oauth_document_hosts: str = _variable(
        "CATALOGUE_OAUTH_DOCUMENT_HOSTS",
        "",
        "Private hosts, comma-separated, where such an address may be as well; written as "
        "`CATALOGUE_HTTP_TOOL_HOSTS`.",
    )
    oauth_document_ca_file: str = _variable(
        "CATALOGUE_OAUTH_DOCUMENT_CA_FILE",
        "",
        "File of certificate authorities that are trusted there besides the public ones.",
    )
    oauth_token_seconds: int = _variable(
        "CATALOGUE_OAUTH_TOKEN_SECONDS",
        3600,
        "Lifetime of an application's access token, which it renews by itself.",
        ge=60,
        le=86_400,
    )
    oauth_refresh_days: int = _variable(
        "CATALOGUE_OAUTH_REFRESH_DAYS",
        30,
        "Days without use after which a user has to sign an application in again.",
        ge=1,
        le=365,
    )
    audit_call_days: int = _variable(
        "CATALOGUE_AUDIT_CALL_DAYS",
        400,
        "Days that the audit keeps calls. 0 = for ever.",
        ge=0,
        le=36_500,
        live="Audit",
    )
    audit_sign_in_days: int = _variable(
        "CATALOGUE_AUDIT_SIGN_IN_DAYS",
        400,
        "The same for sign-ins, sign-outs and failed ones.",
        ge=0,
        le=36_500,
        live="Audit",
    )
    audit_access_days: int = _variable(
        "CATALOGUE_AUDIT_ACCESS_DAYS",
        1100,
        "The same for tokens, users, roles and approvals.",
        ge=0,
        le=36_500,
        live="Audit",
    )
    audit_change_days: int = _variable(
        "CATALOGUE_AUDIT_CHANGE_DAYS",
        1100,
        "The same for curation, settings, imports and exports.",
        ge=0,
        le=36_500,
        live="Audit",
    )
    secrets_dir: str = _variable(
        "CATALOGUE_SECRETS_DIR",
        "",
        "Folder whose files `file:` references to secrets may name. Default: `secrets` in the data folder.",
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

    @field_validator("oauth_scopes", "login_groups", mode="before")
    @classmethod
    def _maps_names(cls, value: Any) -> Any:
        try:
            names = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            names = None
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ValueError('must be JSON such as {"their name": "our name"}')
        return names

    @field_validator("oauth_scopes")
    @classmethod
    def _names_our_scopes(cls, value: dict[str, str]) -> dict[str, str]:
        if unknown := sorted(set(value.values()) - set(SCOPES)):
            raise ValueError(f"{unknown[0]!r} is no scope of ours: {', '.join(SCOPES)}")
        return value

    @field_validator("oauth_issuer", "oauth_introspection_url", "login_issuer")
    @classmethod
    def _is_an_issuer(cls, value: str) -> str:
        return check_issuer(value) if value else value

    @model_validator(mode="after")
    def _can_log_people_in(self) -> Self:
        if self.login_issuer and not self.login_client_id:
            raise ValueError(
                "CATALOGUE_LOGIN_ISSUER: needs CATALOGUE_LOGIN_CLIENT_ID, which the provider gives you"
            )
        if not self.login_passwords and not self.login_issuer:
            raise ValueError(
                "CATALOGUE_LOGIN_PASSWORDS: without passwords people need CATALOGUE_LOGIN_ISSUER to log in"
            )
        return self

    @field_validator("http_tool_hosts", "oauth_document_hosts")
    @classmethod
    def _lists_hosts(cls, value: str) -> str:
        AllowedHosts.parse(value)
        return value

    @field_validator("oauth_document_ca_file")
    @classmethod
    def _has_certificates(cls, value: str) -> str:
        if not value:
            return value
        import ssl

        try:
            ssl.create_default_context(cafile=value)
        except ssl.SSLError:
            raise ValueError("no certificate is found in this file") from None
        except OSError as error:
            raise ValueError(f"this file cannot be read: {error.strerror}") from None
        return value

    @field_validator("secrets_dir")
    @classmethod
    def _is_a_folder(cls, value: str) -> str:
        if value and not Path(value).is_dir():
            raise ValueError("there is no such folder")
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _lists_origins(cls, value: str) -> str:
        for origin in filter(None, map(str.strip, value.split(","))):
            parts = urlsplit(check_issuer(origin))
            if "*" in origin or parts.path.strip("/"):
                raise ValueError(f"{origin!r} is no origin such as https://inspector.example.com")
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

    @field_validator("database_url")
    @classmethod
    def _names_a_database(cls, value: SecretStr) -> SecretStr:
        try:
            name = dj_database_url.parse(value.get_secret_value())["NAME"] if value else "unsaid"
        except ValueError:
            raise ValueError(
                "cannot be read; a password's characters such as / and # are written as %2F and %23"
            ) from None
        # Each process would have a database in its own memory.
        if name in ("", IN_MEMORY):
            raise ValueError("names no database: write sqlite:////path/to/file or postgres://host/name")
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

    @field_validator("approval_webhook_url")
    @classmethod
    def _is_a_usable_webhook(cls, value: str) -> str:
        return endpoint_url(value) if value else value

    @field_validator("approval_webhook_secret")
    @classmethod
    def _signs_webhooks(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        if info.data.get("approval_webhook_url") and len(value.get_secret_value()) < SHORTEST_KEY:
            raise ValueError(
                f"must have at least {SHORTEST_KEY} random characters, such as "
                "`openssl rand -base64 48` prints"
            )
        return value

    @field_validator("public_url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("must look like https://catalogue.example.com")
        return value.rstrip("/")

    @field_validator("metrics_address")
    @classmethod
    def _is_host_and_port(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value and not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError("must look like 0.0.0.0:9100")
        return value

    @property
    def exports_spans(self) -> bool:
        return bool(self.otlp_endpoint or self.otlp_traces_endpoint) and not self.otel_disabled

    @property
    def address(self) -> str:
        """Without a trailing slash."""
        return self.public_url or f"http://localhost:{self.port}"


def read_environment() -> Environment:
    """Exits with one sentence per mistake."""
    problems: list[str] = []
    environment, known = None, variable_names()
    unknown = (name for name in os.environ if name.startswith(PREFIX) and name not in known)
    for name in sorted(name for name in unknown if not name.startswith(SECRETS)):
        close = difflib.get_close_matches(name, known, n=1)
        suggestion = f"; did you mean {close[0]}?" if close else ""
        problems.append(f"{name}: no such setting{suggestion}.")
    folder = os.environ.get(SETTINGS_DIR) or None
    if folder and not Path(folder).is_dir():
        problems.append(f"{SETTINGS_DIR}: {folder} is no folder.")
        folder = None
    try:
        environment = Environment(_secrets_dir=folder)  # type: ignore[call-arg]  # its plugin knows fields only
    except ValidationError as error:
        for item in error.errors():
            named = item["loc"][0] if item["loc"] else ""
            said = _plain(item["msg"])
            problems.append(_sentence(str(named), said, item["input"]) if named else said)
    except (OSError, SettingsError):
        problems.extend(_unreadable(Path(folder or "")))
    if problems or environment is None:
        sys.exit("Configuration error:\n" + "\n".join(f"  {problem}" for problem in problems))
    return environment


def secret_variables() -> dict[str, str]:
    """Those that settings of sources may refer to."""
    return {name: value for name, value in os.environ.items() if name.startswith(SECRETS)}


def variable_names() -> list[str]:
    """In the order of the fields."""
    return [str(field.validation_alias.choices[0]) for field in Environment.model_fields.values()]  # type: ignore[union-attr]


def _unreadable(folder: Path) -> list[str]:
    """A sentence for each setting whose file is no text."""
    problems = []
    for name in variable_names():
        try:
            if (folder / name).is_file():
                (folder / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            problems.append(f"{name}: {folder / name} is no text in UTF-8.")
        except OSError as error:
            problems.append(f"{name}: {folder / name} cannot be read: {error.strerror}.")
    return problems or [f"{SETTINGS_DIR}: {folder} cannot be read."]


def _sentence(name: str, complaint: str, value: Any) -> str:
    fields = zip(variable_names(), Environment.model_fields.values(), strict=True)
    secret = {variable for variable, field in fields if field.annotation is SecretStr}
    # An address may contain a password.
    shown = "a hidden value" if name in secret or "@" in str(value) else repr(value)
    return f"{name}: {complaint} (got {shown})"


def _plain(complaint: str) -> str:
    return complaint.removeprefix("Value error, ")


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
