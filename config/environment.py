"""Every environment variable of the product, with type, default and meaning. A test compares the tables of
docs/settings.md with these fields."""

import difflib
import ipaddress
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import dj_database_url
from pydantic import AfterValidator, BeforeValidator, Field, Json, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from catalogue.naming import BUILT_IN_TOOLS
from connectors.formats.lists import split_list
from connectors.network.headers import signing_key
from connectors.network.policy import (
    AllowedHosts,
    OutboundProxy,
    StdioCommand,
    check_issuer,
    check_scheme,
    endpoint_url,
    normalise_base_url,
)

PREFIX = "CATALOGUE_"
SETTINGS_DIR = "CATALOGUE_SETTINGS_DIR"
SECRETS = "CATALOGUE_SECRET_"  # Variables with secrets, which settings of sources refer to
DATABASES = ("sqlite", "postgres", "postgresql")
IN_MEMORY = ":memory:"
UNPARSED = "cannot be parsed; in a password, write characters such as / and # as %2F and %23"
BROKERS = ("filesystem", "redis", "rediss", "amqp", "amqps")
MIN_KEY = 32
MIN_WEBHOOK_KEY = 24  # Bytes, by Standard Webhooks
HOST = re.compile(r"\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?|\[[0-9A-Fa-f:.]+\]")
ADDRESS = re.compile(rf"(?!\.)({HOST.pattern})(:\d+)?")
ORIGIN = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*://{ADDRESS.pattern}/?")  # Also of desktop applications
BASE_DIR = Path(__file__).resolve().parent.parent
IS_CHECKOUT = (BASE_DIR / "pyproject.toml").exists()  # Else it is an installed wheel
COMMAND = ".venv/bin/python manage.py" if IS_CHECKOUT else "workflow-catalogue"
MIGRATE_FIRST = f"After an update, run this first: {COMMAND} migrate"
BROWSERS_OWN = re.compile(
    "about|blob|chrome.*|data|file.*|ftp|https?|intent|jar|mailto|ms-.*|resource|search.*|.*script|view-source|wss?"
)
ScopeName = Literal["workflows:read", "workflows:run", "catalogue:read", "catalogue:admin"]
GROUP = "live"  # Marks a changeable field, with its heading


def _default_data_dir() -> Path:
    if IS_CHECKOUT:
        return BASE_DIR / "var"
    from platformdirs import user_data_path

    return user_data_path("workflow-catalogue", appauthor=False)


def _variable(
    default: Any,
    description: str,
    *,
    within: tuple[float, float] | None = None,
    variable: str = "",
    live: str = "",
    **bounds: Any,
) -> Any:
    """`within`: the least and the greatest value. `variable`: a name that does not follow from the field's.
    `live`: the heading under which it can be changed while the product runs."""
    if within is not None:
        bounds = {"ge": within[0], "le": within[1]}
    extra: Any = {GROUP: live} if live else None
    alias = variable or None
    return Field(
        default=default, validation_alias=alias, description=description, json_schema_extra=extra, **bounds
    )


def _unless_empty(read: Callable[[str], str]) -> AfterValidator:
    return AfterValidator(lambda value: read(value) if value else value)


def _checked(check: Callable[[str], object]) -> AfterValidator:
    def unchanged(value: str) -> str:
        check(value)
        return value

    return _unless_empty(unchanged)


def _each(check: Callable[[str], object]) -> AfterValidator:
    """Checks the items of a comma-separated list."""
    return _checked(lambda value: [check(item) for item in split_list(value)])


def _check_scheme_name(scheme: str) -> None:
    if BROWSERS_OWN.fullmatch(scheme) or not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        raise ValueError(f"{scheme!r} is not the scheme of a desktop application, such as cursor")


def _check_built_in_tool(name: str) -> None:
    if name not in BUILT_IN_TOOLS:
        raise ValueError(f"{name!r} is no built-in tool; these are {', '.join(BUILT_IN_TOOLS)}")


def _check_certificates(file: str) -> None:
    import ssl

    try:
        ssl.create_default_context(cafile=file)
    except ssl.SSLError:
        raise ValueError("this file does not contain a certificate") from None
    except OSError as error:
        raise ValueError(f"this file cannot be read: {error.strerror}") from None


def _check_folder(folder: str) -> None:
    if not Path(folder).is_dir():
        raise ValueError("this folder does not exist")


def _check_origin(origin: str) -> None:
    if origin != "null" and not ORIGIN.fullmatch(origin):
        raise ValueError(f"{origin!r} is not an origin such as https://inspector.example.com")
    parts = urlsplit(origin)
    if parts.scheme == "http" and not str(parts.hostname).endswith(".localhost"):
        check_scheme(origin)


def _check_server(address: str, schemes: tuple[str, ...]) -> None:
    if address and address.partition("://")[0] not in schemes:
        raise ValueError(f"must begin with one of {', '.join(f'{scheme}://' for scheme in schemes)}")


def _check_broker(value: SecretStr) -> SecretStr:
    _check_server(value.get_secret_value(), BROKERS)
    try:
        for address in value.get_secret_value().split(";"):  # Celery takes several
            _ = urlsplit(address).port
    except ValueError:
        raise ValueError(UNPARSED) from None
    return value


def _check_database(value: SecretStr) -> SecretStr:
    _check_server(value.get_secret_value(), DATABASES)
    try:
        name = dj_database_url.parse(value.get_secret_value())["NAME"] if value else "unsaid"
    except ValueError:
        raise ValueError(UNPARSED) from None
    # Each process would have a database in its own memory.
    if name in ("", IN_MEMORY):
        raise ValueError("must name a database, such as sqlite:////path/to/file or postgres://host/name")
    return value


def _check_key(value: SecretStr) -> SecretStr:
    if 0 < len(value.get_secret_value()) < MIN_KEY:
        raise ValueError(
            f"must have at least {MIN_KEY} random characters, such as the output of "
            "`openssl rand -base64 48`; put the current key into SECRET_KEY_FALLBACKS so that data encrypted "
            "with it can still be read"
        )
    return value


def _check_proxy(value: SecretStr) -> SecretStr:
    OutboundProxy.parse(value.get_secret_value(), "")
    return value


def _can_sign(secret: str) -> bool:
    try:
        return len(secret) >= MIN_KEY and len(signing_key(secret)) >= MIN_WEBHOOK_KEY
    except ValueError:
        return False


def _check_host(host: str) -> None:
    if host.strip("*.") == "":
        raise ValueError(
            "must name specific hosts: with a wildcard, web pages could send their visitors' requests here; "
            "`.example.com` matches that host and all its subdomains"
        )
    if not HOST.fullmatch(host):
        raise ValueError(f"{host!r} is not a host name or IP address; leave out scheme, port and path")


def _origin_of(value: str) -> str:
    """Returns the origin as browsers write it, with which it is compared. Raises ValueError."""
    parts = urlsplit(value)
    scheme, place = parts.scheme, parts.netloc.lower()
    is_address = scheme in ("http", "https") and ADDRESS.fullmatch(place) and parts.port != 0
    if not is_address or value.lower().rstrip("/") != f"{scheme}://{place}":
        raise ValueError(
            "must look like https://catalogue.example.com, with a port if needed: the product cannot be "
            "served below a path"
        )
    return f"{scheme}://{place.removesuffix(':80' if scheme == 'http' else ':443')}"


def _check_host_and_port(value: str) -> None:
    host, _, port = value.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError("must look like 0.0.0.0:9100")


HostList = Annotated[str, _checked(AllowedHosts.parse)]
IssuerUrl = Annotated[str, _unless_empty(check_issuer)]
Command = Annotated[
    StdioCommand, BeforeValidator(lambda value: {"command": value} if isinstance(value, list) else value)
]


class Environment(BaseSettings):
    """Read once, by `config.settings`; no other module reads `os.environ`."""

    model_config = SettingsConfigDict(
        case_sensitive=True,
        frozen=True,
        env_ignore_empty=True,
        alias_generator=lambda field: PREFIX + field.upper(),  # `list_ttl` is `CATALOGUE_LIST_TTL`
    )

    data_dir: Path = _variable(
        _default_data_dir(),
        "Folder for the embedded database, the embedded broker and generated secrets. Default: `var`, "
        "for a wheel the user's data folder.",
    )
    settings_dir: str = _variable(
        "",
        "Folder with a file for each setting, such as `/run/secrets`. Environment variables take precedence.",
    )
    database_url: Annotated[SecretStr, AfterValidator(_check_database)] = _variable(
        SecretStr(""),
        "`postgres://user:password@host/name` or `sqlite:///path`. Default: SQLite in the data folder.",
        variable="DATABASE_URL",
    )
    database_connections: int = _variable(
        20, "Maximum number of PostgreSQL connections per process; see docs/sizing.md.", within=(2, 1_000)
    )
    celery_broker_url: Annotated[SecretStr, AfterValidator(_check_broker)] = _variable(
        SecretStr("filesystem://"),
        "Broker: `redis://`, `amqp://`, or the embedded one in the data folder.",
        variable="CELERY_BROKER_URL",
    )
    secret_key: Annotated[SecretStr, AfterValidator(_check_key)] = _variable(
        SecretStr(""),
        "Signs sessions and encrypts stored credentials. Default: generated once in the data folder.",
        variable="SECRET_KEY",
    )
    secret_key_fallbacks: SecretStr = _variable(
        SecretStr(""),
        "Former keys that are still accepted; see docs/security.md.",
        variable="SECRET_KEY_FALLBACKS",
    )
    port: int = _variable(8000, "Port of the web server.", within=(1, 65535), variable="PORT")
    public_url: Annotated[str, _unless_empty(_origin_of)] = _variable(
        "", "Address that people and clients use, without a path. Default: `http://localhost:PORT`."
    )
    allowed_hosts: Annotated[str, _each(_check_host)] = _variable(
        "", "Additional host names that the `Host` header may contain."
    )
    allowed_origins: Annotated[str, _each(_check_origin)] = _variable(
        "",
        "Origins of web pages and desktop applications that may sign users in and call tools, such as "
        "`https://inspector.example.com` or `app://obsidian.md`.",
    )
    trusted_proxies: Annotated[str, _each(ipaddress.ip_network)] = _variable(
        "", "Addresses or networks of proxies whose `X-Forwarded-For` header is trusted."
    )
    oauth_issuer: IssuerUrl = _variable(
        "",
        "Authorization server whose access tokens are also accepted, as in the `iss` of its tokens; "
        "see docs/login.md.",
    )
    oauth_audiences: str = _variable(
        "", "Audiences that its tokens may have besides the addresses of `/mcp` and `/mcp/<toolset>`."
    )
    oauth_token_types: str = _variable(
        "at+jwt", "Accepted `typ` headers of its tokens; some servers use `JWT`."
    )
    oauth_client_id: str = _variable(
        "", "The product's client ID there, for introspection of tokens that are not JWTs."
    )
    oauth_client_secret: SecretStr = _variable(SecretStr(""), "Secret of that client.")
    oauth_introspection_url: IssuerUrl = _variable(
        "", "Introspection endpoint. Default: from the server's metadata."
    )
    oauth_user_claim: str = _variable(
        "",
        "Claim that identifies the user of an unlinked subject: `email`, if verified, or a claim with "
        "the user name.",
    )
    oauth_scopes: Json[dict[str, ScopeName]] = _variable(
        "{}", "Its scopes mapped to the product's. Default: the same names."
    )
    oauth_role_without_user: str = _variable(
        "", "Group whose permissions tokens without a user have. Default: such tokens are refused."
    )
    login_issuer: IssuerUrl = _variable("", "OpenID provider through which people log in; see docs/login.md.")
    login_client_id: str = _variable("", "The product's client ID at the provider.")
    login_client_secret: SecretStr = _variable(SecretStr(""), "Secret of that client.")
    login_name: str = _variable("your company", 'Name of the provider on the button "Log in with ...".')
    login_scopes: str = _variable("openid profile email", "Scopes that a login requests.")
    login_user_claim: str = _variable(
        "",
        "Claim that identifies the user at the first login: `email`, if verified, or a claim with the "
        "user name.",
    )
    login_creates_users: bool = _variable(
        False, "Whether the first login of a person without a user creates one."
    )
    login_groups_claim: str = _variable("groups", "Claim that lists groups.")
    login_groups: Json[dict[str, str]] = _variable(
        "{}",
        "The provider's groups mapped to the product's at each login, such as `{\"platform-team\": "
        '"Curator"}`.',
    )
    login_ends_at_provider: bool = _variable(
        False, "Whether people who log out are also logged out at the provider."
    )
    login_hours: float = _variable(
        12.0, "Hours after which people must log in at the provider again.", gt=0, le=8760
    )
    login_passwords: bool = _variable(True, "`false` makes the provider the only way to log in.")
    second_factor: Literal["chosen", "staff"] = _variable(
        "chosen", "Who needs a second factor with a password: `staff`, or those who have `chosen` one."
    )
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(str.upper)] = (
        _variable(
            "INFO",
            "Minimum severity that is logged: `DEBUG`, `INFO`, `WARNING` or `ERROR`.",
            variable="LOG_LEVEL",
        )
    )
    log_format: Literal["text", "json"] = _variable(
        "text", "`text` for people, `json` for log collectors.", variable="LOG_FORMAT"
    )
    metrics_address: Annotated[str, _checked(_check_host_and_port)] = _variable(
        "", "Address such as `0.0.0.0:9100` for each process's own metrics, without authentication."
    )
    metrics_tools: int = _variable(
        100, "Number of tools with their own series in the metrics; the others share one.", within=(0, 10_000)
    )
    otlp_endpoint: str = _variable(
        "",
        "Collector of traces, such as `http://localhost:4318`; see docs/observability.md.",
        variable="OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    otlp_traces_endpoint: str = _variable(
        "",
        "Full address for traces, instead of `OTEL_EXPORTER_OTLP_ENDPOINT`.",
        variable="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    )
    traces_per_second: float = _variable(
        20.0, "Number of new traces that a process records a second; 0 = all.", within=(0, 100_000)
    )
    traces_sampler: str = _variable(
        "",
        "OpenTelemetry's sampler, instead of `CATALOGUE_TRACES_PER_SECOND`.",
        variable="OTEL_TRACES_SAMPLER",
    )
    otel_disabled: bool = _variable(False, "`true` disables traces.", variable="OTEL_SDK_DISABLED")
    debug: bool = _variable(
        False, "Enables Django's debug pages. Never do so on a machine that others can reach."
    )
    discovery_enabled: bool = _variable(
        True,
        "`false` stops all scheduled discovery; manual refreshes still work.",
        live="Discovery and starts",
    )
    discovery_interval: int = _variable(
        300,
        "Seconds between two listings of a source. 0 = only manual refreshes.",
        within=(0, 604_800),
        live="Discovery and starts",
    )
    retry_attempts: int = _variable(
        3,
        "Retries of a failed listing, and of a start that certainly did not happen.",
        within=(0, 10),
        live="Discovery and starts",
    )
    execution_timeout: int = _variable(
        300,
        "Seconds after which a run is cancelled, unless its workflow sets a timeout.",
        within=(1, 2_592_000),
        live="Runs",
    )
    inline_wait: float = _variable(
        50.0,
        "Seconds that a `tools/call` waits for its result before it returns a handle.",
        within=(0, 3600),
        live="Runs",
    )
    inline_result_characters: int = _variable(
        100_000,
        "Maximum characters of a result in an MCP response; a longer one is shortened to its "
        "beginning and a link.",
        within=(4_000, 100_000_000),
    )
    inline_content_bytes: int = _variable(
        4 * 1024 * 1024,
        "Maximum bytes of images, audio and files in an MCP response; links replace the rest.",
        within=(4_096, 1024 * 1024 * 1024),
    )
    max_concurrent_executions: int = _variable(
        1000,
        "Maximum number of concurrent runs of all sources; further calls wait in the queue. 0 = no limit.",
        within=(0, 1_000_000),
        live="Limits",
    )
    max_concurrent_per_caller: int = _variable(
        200,
        "Maximum number of concurrent runs of one token or user. 0 = no limit.",
        within=(0, 1_000_000),
        live="Limits",
    )
    max_queued_executions: int = _variable(
        1000,
        'Maximum number of calls in the queue; further calls are answered with "busy, try again in N s".',
        within=(0, 100_000),
        live="Limits",
    )
    max_queued_per_caller: int = _variable(
        500, "Maximum number of calls of one token or user in the queue.", within=(0, 100_000), live="Limits"
    )
    calls_per_minute: int = _variable(
        0,
        "Workflow calls per minute of one caller, all tokens of a user together. 0 = no limit.",
        within=(0, 1_000_000),
        live="Limits",
    )
    calls_at_once: int = _variable(
        0,
        "Calls of one caller without a pause between them. 0 = ten seconds' worth.",
        within=(0, 1_000_000),
        live="Limits",
    )
    tool_calls_per_minute: int = _variable(
        0,
        "Calls per minute of one workflow by all callers together, unless it has its own limit. 0 = "
        "no limit.",
        within=(0, 1_000_000),
        live="Limits",
    )
    tool_calls_at_once: int = _variable(
        0,
        "Calls of one workflow without a pause between them. 0 = ten seconds' worth.",
        within=(0, 1_000_000),
        live="Limits",
    )
    token_days: int = _variable(
        90, "Default lifetime of a new access token, in days.", within=(1, 36_500), live="Access tokens"
    )
    max_token_days: int = _variable(
        0,
        "Maximum lifetime in days, except for users who may create tokens that never expire. 0 = no limit.",
        within=(0, 36_500),
        live="Access tokens",
    )
    max_unapproved_per_caller: int = _variable(
        1000,
        "Maximum number of calls of one token or user that wait for approval.",
        within=(1, 100_000),
        live="Limits",
    )
    approval_hours: float = _variable(
        24.0, "Hours after which a call that waits for approval expires.", gt=0, le=8760, live="Approval"
    )
    approve_own_calls: bool = _variable(
        False, "Whether approvers may approve their own calls and those of their tokens.", live="Approval"
    )
    approval_mail: Literal["off", "requests", "outcomes"] = _variable(
        "requests", "E-mails: `requests` to approvers, `outcomes` also to the user behind the call, or `off`."
    )
    approval_webhook_url: Annotated[str, _unless_empty(partial(endpoint_url, may_have_query=True))] = (
        _variable(
            "", "Address that receives each request for approval and each outcome; see docs/approvals.md."
        )
    )
    approval_webhook_secret: SecretStr = _variable(
        SecretStr(""),
        "Signs these messages, and is required with an address: `whsec_` and a key in Base64 "
        "(`openssl rand -base64 32`), or at least 32 characters.",
    )
    email_host: str = _variable("", "Mail server (SMTP). Empty: no e-mail is sent.", variable="EMAIL_HOST")
    email_port: int = _variable(587, "Port of the mail server.", within=(1, 65535), variable="EMAIL_PORT")
    email_host_user: str = _variable("", "User name there, if required.", variable="EMAIL_HOST_USER")
    email_host_password: SecretStr = _variable(
        SecretStr(""), "Password there.", variable="EMAIL_HOST_PASSWORD"
    )
    email_security: Literal["starttls", "tls", "none"] = _variable(
        "starttls", "`starttls`, `tls` or `none`.", variable="EMAIL_SECURITY"
    )
    email_from: str = _variable(
        "workflow-catalogue@localhost", "Sender of the product's e-mail.", variable="DEFAULT_FROM_EMAIL"
    )
    idempotency_hours: float = _variable(
        24.0, "Hours that an idempotency key refers to its execution.", gt=0, le=8760, live="Runs"
    )
    reattach_seconds: float = _variable(
        3600.0,
        "Seconds after a lost connection in which an identical call of the same caller joins "
        "the run in progress.",
        within=(0, 604_800),
        live="Runs",
    )
    reattach_result_seconds: float = _variable(
        120.0,
        "Seconds after the end of that run in which such a call gets its result instead of "
        "starting another run.",
        within=(0, 604_800),
        live="Runs",
    )
    status_check_interval: float = _variable(
        5.0,
        "Seconds between polls of a new run for which no request waits, until previous runs of its "
        "workflow suggest a better interval.",
        within=(1, 3600),
        live="Runs",
    )
    max_request_bytes: int = _variable(
        4 * 1024 * 1024,
        "Maximum bytes of a request body that MCP and REST accept.",
        within=(1024, 1024 * 1024 * 1024),
    )
    max_payload_bytes: int = _variable(
        10 * 1024 * 1024,
        "Maximum bytes of an input, output or raw engine response that a record keeps in full.",
        within=(1024, 1024 * 1024 * 1024),
    )
    stdio_commands: Json[dict[str, Command]] = _variable(
        "{}", "Commands that sources of MCP servers may start, by name; see docs/upstream-mcp.md."
    )
    http_tool_hosts: HostList = _variable(
        "",
        "Private hosts and networks that HTTP tools and the webhooks of calls may reach, such as "
        "`billing.internal,10.1.0.0/16`.",
    )
    outbound_proxy: Annotated[SecretStr, AfterValidator(_check_proxy)] = _variable(
        SecretStr(""),
        "HTTP proxy for outgoing requests, such as `http://user:password@proxy.example.com:3128`; see "
        "docs/deployment.md.",
    )
    no_proxy: HostList = _variable(
        "", "Hosts and networks that are reached without it, such as `*.corp.example,10.0.0.0/8`."
    )
    openai_base_url: Annotated[str, _checked(normalise_base_url)] = _variable(
        "https://api.openai.com/v1",
        "Model server of `POST /workflow`, with an OpenAI-compatible API of chat completions.",
        variable="OPENAI_BASE_URL",
    )
    openai_api_key: SecretStr = _variable(
        SecretStr(""),
        "Its API key, or a reference to a secret; see docs/security.md.",
        variable="OPENAI_API_KEY",
    )
    openai_model: str = _variable(
        "",
        "Model that chooses tools. Without it, `POST /workflow` returns an error.",
        variable="OPENAI_MODEL",
    )
    model_timeout: float = _variable(
        60.0, "Seconds that a response of the model may take.", gt=0, le=3600, live="Language model"
    )
    model_retries: int = _variable(
        2,
        "Retries of a request when the model is busy or cannot be reached.",
        within=(0, 10),
        live="Language model",
    )
    model_context_tokens: int = _variable(
        16_000,
        "Maximum estimated tokens of a prompt. If the tools do not fit, the model first chooses which "
        "to describe.",
        within=(1_000, 10_000_000),
    )
    model_answer_tokens: int = _variable(
        2_000, "Maximum tokens of a response of the model.", within=(100, 1_000_000)
    )
    page_size: int = _variable(
        1000,
        "Tools, resources or prompts per page of MCP lists; many clients read only the first page.",
        within=(1, 100_000),
    )
    left_out_tools: Annotated[str, _each(_check_built_in_tool)] = _variable(
        "",
        "Built-in tools that tools/list leaves out, comma-separated, such as preflight, because each costs "
        "agents tokens. They can still be called.",
    )
    problem_reports: bool = _variable(
        True,
        "Whether agents can report by the tool report_problem what they miss; see docs/overview.md.",
        live="Agents",
    )
    list_ttl: float = _variable(
        10.0,
        "Seconds that MCP clients may cache a list; subscribers are notified of changes.",
        within=(0, 86_400),
    )

    oauth_enabled: bool = _variable(
        True,
        "Whether MCP clients can sign users in through the browser; otherwise they need access tokens.",
        variable="CATALOGUE_OAUTH",
    )
    oauth_registration: bool = _variable(
        True, "Whether clients may register themselves (RFC 7591). Users still have to consent."
    )
    oauth_registrations_per_hour: int = _variable(
        100, "Maximum number of registrations from one address in an hour.", within=(1, 100_000)
    )
    oauth_client_documents: bool = _variable(
        True,
        "Whether client IDs may be https addresses of public metadata documents, which the product reads.",
    )
    oauth_document_hosts: HostList = _variable("", "Private hosts that may serve such documents.")
    oauth_document_ca_file: Annotated[str, _checked(_check_certificates)] = _variable(
        "", "File of certificate authorities trusted for these hosts besides the public ones."
    )
    oauth_redirect_schemes: Annotated[str, _each(_check_scheme_name)] = _variable(
        "claude,cursor,kiro,mcpjam,raycast,trae,vscode,vscode-insiders,vscodium,warp,windsurf",
        "Schemes of desktop applications that may sign users in, besides reversed domain names such "
        "as `com.example.app`.",
    )
    oauth_token_seconds: int = _variable(
        3600,
        "Lifetime in seconds of an application's access token; applications renew it.",
        within=(60, 86_400),
    )
    oauth_refresh_grace_seconds: int = _variable(
        60,
        "Seconds after a renewal in which the application may still use the former refresh token. "
        "Later, its use revokes all tokens derived from it.",
        within=(0, 3600),
    )
    oauth_refresh_days: int = _variable(
        30, "Days without use after which a user must sign an application in again.", within=(1, 365)
    )
    audit_call_days: int = _variable(
        400, "Days that the audit keeps calls. 0 = forever.", within=(0, 36_500), live="Audit"
    )
    audit_sign_in_days: int = _variable(
        400,
        "Days that the audit keeps sign-ins, sign-outs and failed sign-ins. 0 = forever.",
        within=(0, 36_500),
        live="Audit",
    )
    audit_access_days: int = _variable(
        1100,
        "Days that the audit keeps entries about tokens, users, roles and approvals. 0 = forever.",
        within=(0, 36_500),
        live="Audit",
    )
    audit_change_days: int = _variable(
        1100,
        "Days that the audit keeps entries about curation, settings, imports and exports. 0 = forever.",
        within=(0, 36_500),
        live="Audit",
    )
    secrets_dir: Annotated[str, _checked(_check_folder)] = _variable(
        "", "Folder of the files that `file:` references may name. Default: `secrets` in the data folder."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.login_issuer and not self.login_client_id:
            raise ValueError(
                "CATALOGUE_LOGIN_ISSUER: requires CATALOGUE_LOGIN_CLIENT_ID, which the provider assigns"
            )
        if not self.login_passwords and not self.login_issuer:
            raise ValueError(
                "CATALOGUE_LOGIN_PASSWORDS: without passwords people need CATALOGUE_LOGIN_ISSUER to log in"
            )
        if self.approval_webhook_url and not _can_sign(self.approval_webhook_secret.get_secret_value()):
            raise ValueError(
                f"CATALOGUE_APPROVAL_WEBHOOK_SECRET: must be `whsec_` followed by at least "
                f"{MIN_WEBHOOK_KEY} random bytes in Base64, such as the output of "
                f"`openssl rand -base64 32`, or at least {MIN_KEY} other characters"
            )
        return self

    @property
    def address(self) -> str:
        """Returns the address without a trailing slash."""
        return self.public_url or f"http://localhost:{self.port}"


def read_environment() -> Environment:
    """Exits with one sentence per mistake."""
    problems: list[str] = []
    environment, known = None, variable_names()
    unknown = (name for name in os.environ if name.startswith(PREFIX) and name not in known)
    for name in sorted(name for name in unknown if not name.startswith(SECRETS)):
        close = difflib.get_close_matches(name, known, n=1)
        suggestion = f"; did you mean {close[0]}?" if close else "."
        problems.append(f"{name}: unknown setting{suggestion}")
    folder = os.environ.get(SETTINGS_DIR) or None
    if folder and not Path(folder).is_dir():
        problems.append(f"{SETTINGS_DIR}: {folder} is not a folder.")
        folder = None
    try:
        environment = Environment(_secrets_dir=folder)  # type: ignore[call-arg]  # its plugin knows fields only
    except ValidationError as error:
        for item in error.errors():
            named = item["loc"][0] if item["loc"] else ""
            said = item["msg"].removeprefix("Value error, ")
            problems.append(_sentence(str(named), said, item["input"]) if named else said)
    except (OSError, SettingsError) as error:
        problems.append(
            f"{SETTINGS_DIR}: {folder} cannot be read: {error}: {error.__cause__ or ''}".rstrip(": ")
        )
    if problems or environment is None:
        sys.exit("Configuration error:\n" + "\n".join(f"  {problem}" for problem in problems))
    return environment


def secret_variables() -> dict[str, str]:
    """Returns those that settings of sources may refer to."""
    return {name: value for name, value in os.environ.items() if name.startswith(SECRETS)}


def variable_names() -> list[str]:
    """Returns the names in the order of the fields."""
    return [str(field.validation_alias) for field in Environment.model_fields.values()]


def _sentence(name: str, complaint: str, value: Any) -> str:
    fields = Environment.model_fields.values()
    secret = {field.validation_alias for field in fields if field.annotation is SecretStr}
    # An address may contain a password, and whoever knows a webhook's address may send.
    is_secret = name in secret or "@" in str(value) or name.endswith("_WEBHOOK_URL")
    shown = "a hidden value" if is_secret else repr(value)
    return f"{name}: {complaint} (got {shown})"


class LiveSettings:
    """The environment's fields, with changes by administrators applied at each reading."""

    _values: Mapping[str, Any] = {}

    def __init__(self, values: Mapping[str, Any], overrides: Any = None) -> None:
        self._values = values
        self.overrides = overrides  # What administrators changed; `catalogue.product_settings` provides it

    def __getattr__(self, name: str) -> Any:
        if name not in self._values:
            raise AttributeError(f"There is no setting {name}.")
        if name not in LIVE_SETTINGS or self.overrides is None:
            return self._values[name]
        return self.overrides.current().get(name, self._values[name])

    def given(self, name: str) -> Any:
        """Returns the environment's value."""
        return self._values[name]

    def __or__(self, other: Mapping[str, Any]) -> Self:
        """Returns a copy with other values of the environment."""
        return type(self)({**self._values, **other}, self.overrides)


def _describe_live(name: str, field: FieldInfo, group: str) -> dict[str, Any]:
    def bound(kind: str) -> float | None:
        return next((getattr(limit, kind) for limit in field.metadata if hasattr(limit, kind)), None)

    return {
        "name": name,
        "variable": field.validation_alias,
        "group": group,
        "type": field.annotation,
        "description": field.description,
        "minimum": bound("ge"),
        "above": bound("gt"),
        "maximum": bound("le"),
    }


LIVE_SETTINGS = {
    name: _describe_live(name, field, str(field.json_schema_extra[GROUP]))
    for name, field in Environment.model_fields.items()
    if isinstance(field.json_schema_extra, dict)
}
"""Changeable settings in the order of the fields."""
