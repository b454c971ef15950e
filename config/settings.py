"""Django's settings, derived from `config.environment`."""

import errno
import os
import secrets
import sqlite3
import sys
from pathlib import Path
from typing import Any, cast, get_args
from urllib.parse import quote, urlsplit

import dj_database_url
from django.templatetags.static import static
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext
from loguru import logger

from config.environment import (
    BASE_DIR,
    MIGRATE_FIRST,  # noqa: F401 - a setting of that name
    Environment,
    LiveSettings,
    ScopeName,
    read_environment,
    secret_variables,
)
from config.environment import LIVE_SETTINGS as CHANGEABLE
from config.logging import configure_logging, process_name
from config.private_files import keep_private, keep_private_database, write_secret_once
from connectors.formats.lists import split_list
from telemetry.traces import export_spans

ENVIRONMENT = read_environment()
VERSION = (BASE_DIR / "VERSION").read_text(encoding="ascii").strip()
DEMO_SOURCE = "example-engine"  # The source that `quickstart` connects
DATA_DIR = ENVIRONMENT.data_dir
DATA_DIR_IS_NEW = not DATA_DIR.exists()  # Made by this process
DEFAULT_DATA_DIR = type(ENVIRONMENT).model_fields["data_dir"].default
try:
    # Other accounts of this machine must not read the record of executions.
    DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
    (DATA_DIR / "static").mkdir(exist_ok=True)
    if not os.access(DATA_DIR, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "this user may not read and write it")
except OSError as error:
    sys.exit(f"Configuration error:\n  CATALOGUE_DATA_DIR: {DATA_DIR} cannot be used: {error.strerror}")

# An existing folder may be open to other accounts.
keep_private(DATA_DIR / "broker")

configure_logging(level=ENVIRONMENT.log_level, log_format=ENVIRONMENT.log_format)
PROCESS = process_name(sys.argv)
METRICS_ADDRESS = ENVIRONMENT.metrics_address
if (ENVIRONMENT.otlp_endpoint or ENVIRONMENT.otlp_traces_endpoint) and not ENVIRONMENT.otel_disabled:
    export_spans(
        process=PROCESS,
        version=VERSION,
        traces_per_second=0 if ENVIRONMENT.traces_sampler else ENVIRONMENT.traces_per_second,
    )
LOGGING_CONFIG = None


def _secret_keys(path: Path) -> list[str]:
    """The key, followed by former ones that are still accepted. They come from the environment, or else from
    a file with one key per line, which the first start creates."""
    former = split_list(ENVIRONMENT.secret_key_fallbacks.get_secret_value())
    if key := ENVIRONMENT.secret_key.get_secret_value():
        return [key, *former]
    return path.read_text(encoding="ascii").split() + former


SECRET_KEY_FILE = None if ENVIRONMENT.secret_key.get_secret_value() else DATA_DIR / "secret_key"
try:
    SECRET_KEY_IS_NEW = (  # Made by this process
        SECRET_KEY_FILE is not None
        and not SECRET_KEY_FILE.exists()
        and write_secret_once(SECRET_KEY_FILE, secrets.token_urlsafe(50))
    )
    SECRET_KEY, *SECRET_KEY_FALLBACKS = _secret_keys(DATA_DIR / "secret_key")
except (OSError, ValueError) as error:
    _why = error.strerror if isinstance(error, OSError) else "it contains no key. Restore it from a backup."
    sys.exit(f"Configuration error:\n  SECRET_KEY is not set, and {SECRET_KEY_FILE} cannot be used: {_why}")
DEBUG = ENVIRONMENT.debug
DEFAULT_EXCEPTION_REPORTER_FILTER = "config.web_server.WithoutValues"
PUBLIC_URL = ENVIRONMENT.address
_PUBLIC_HOST = urlsplit(PUBLIC_URL).hostname or "localhost"
ALLOWED_HOSTS = sorted(
    {"localhost", "127.0.0.1", "[::1]", _PUBLIC_HOST, *split_list(ENVIRONMENT.allowed_hosts)}
)
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if PUBLIC_URL.startswith("https:") else None
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PUBLIC_URL.startswith("https:")
# Browsers that used HTTPS once use it for a year; other hosts of the domain are not affected.
SECURE_HSTS_SECONDS = 31_536_000 if PUBLIC_URL.startswith("https:") else 0
# What `check --deploy` says besides. None is about secrets or cookies.
SILENCED_SYSTEM_CHECKS = [
    "security.W005",  # It would affect other hosts of the domain
    "security.W021",  # The same, for browsers' lists
    "security.W008",  # The proxy that has the certificate redirects
    "oauth2_provider.W008",  # Programs on the user's machine are called back at http://127.0.0.1 (RFC 8252)
    "oauth2_provider.E001",  # Within the grace period ours gives another pair of tokens, not the former one
]

INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.humanize",  # Its catalogues have the cases of "ago" and "in"
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.forms",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "oauth2_provider",
    "audit",
    "access",
    "catalogue",
    "executions",
    "identity",
    "mcp_bridge",
    "orchestration",
    "config.ProductConfig",
]

MIDDLEWARE = [
    "config.web_server.SecurityHeaders",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "config.reader_language.ReaderLanguage",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "config.web_server.OriginMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "identity.second_factor.SecondFactorRequired",
    "django.contrib.messages.middleware.MessageMiddleware",
    "catalogue.undo.OfferUndo",
    "config.reader_zone.ReaderZone",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
WSGI_APPLICATION = "config.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        # Before those of the apps, to replace some of unfold's.
        "DIRS": [BASE_DIR / "config" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# Templates of widgets are also found here.
FORM_RENDERER = "django.forms.renderers.TemplatesSetting"

SQLITE_OPTIONS: dict[str, Any] = {
    # Writers queue up at BEGIN instead of failing in mid-transaction, readers never block them.
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": (
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; "
        "PRAGMA temp_store=MEMORY; "
        # A call writes some 25 pages: with the default of 1,000, every 40th call would move them all.
        "PRAGMA wal_autocheckpoint=8000"
    ),
}
# A machine that is gone neither refuses connections nor closes them: psycopg would wait 130 s for a new one,
# and a query for 15 minutes or two hours. A query that takes long is not affected.
GONE_MACHINES: dict[str, Any] = {
    "connect_timeout": 5,
    "tcp_user_timeout": 15_000,  # Milliseconds
    "keepalives_idle": 10,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
POSTGRES_OPTIONS: dict[str, Any] = {
    "pool": {
        "min_size": 1,
        "max_size": ENVIRONMENT.database_connections,
        "timeout": 15,
        # It waits 1, 2, 4 ... seconds between attempts: after minutes, the server would be back for minutes.
        "reconnect_timeout": 5,
    }
}


def _database() -> dict[str, Any]:
    embedded = f"sqlite:///{quote(str(DATA_DIR / 'catalogue.sqlite3'))}"
    url = ENVIRONMENT.database_url.get_secret_value() or embedded
    database: dict[str, Any] = dict(dj_database_url.parse(url))
    if database["ENGINE"].endswith("sqlite3"):
        keep_private_database(database["NAME"])
        # Threads keep their connection: opening one costs more than most queries here.
        return database | {
            "ENGINE": "config.sqlite",
            "OPTIONS": SQLITE_OPTIONS,
            "CONN_MAX_AGE": None,
            "TEST": {"NAME": str(DATA_DIR / "test.sqlite3")},
        }
    return database | {
        "ENGINE": "config.postgresql",
        "OPTIONS": GONE_MACHINES | database.get("OPTIONS", {}) | POSTGRES_OPTIONS,
        "CONN_MAX_AGE": 0,
        # A restarted server leaves dead connections in the pool.
        "CONN_HEALTH_CHECKS": True,
    }


DATABASES = {"default": _database()}
if SECRET_KEY_IS_NEW and DATABASES["default"]["ENGINE"] == "config.postgresql":
    logger.warning(
        "SECRET_KEY is not set: a new key was made in {}. All processes that use this database need the same "
        "key. If it already contains data, set SECRET_KEY to the key of that data.",
        SECRET_KEY_FILE,
    )
if sqlite3.sqlite_version_info < (3, 37):
    raise SystemExit(f"SQLite 3.37 or newer is required; this Python has {sqlite3.sqlite_version}.")

# The embedded authorization server; identity.oauth has the rules.
OAUTH2_PROVIDER_APPLICATION_MODEL = "oauth2_provider.Application"
OAUTH2_PROVIDER = {
    "OAUTH2_SERVER_CLASS": "oauthlib.oauth2.WebApplicationServer",  # Codes and refresh tokens, nothing else
    "OAUTH2_VALIDATOR_CLASS": "identity.oauth.server.Validator",
    "ACCESS_TOKEN_GENERATOR": "identity.oauth.server.make_token",
    "REFRESH_TOKEN_GENERATOR": "identity.oauth.server.make_refresh_token",
    "SCOPES": dict.fromkeys(get_args(ScopeName), ""),
    "DEFAULT_SCOPES": ["workflows:read", "workflows:run"],
    "OIDC_ISS_ENDPOINT": PUBLIC_URL,  # The issuer, in spite of its name
    "AUTHORIZATION_CODE_EXPIRE_SECONDS": 60,
    "ACCESS_TOKEN_EXPIRE_SECONDS": ENVIRONMENT.oauth_token_seconds,
    "REFRESH_TOKEN_EXPIRE_SECONDS": ENVIRONMENT.oauth_refresh_days * 86_400,
    "REFRESH_TOKEN_REUSE_PROTECTION": True,
    "REFRESH_TOKEN_GRACE_PERIOD_SECONDS": ENVIRONMENT.oauth_refresh_grace_seconds,
    "ALLOW_LOCALHOST_LOOPBACK": True,
    "PKCE_REQUIRED": True,
    "COMPLIANT_BCP_RFC9700_IMPLICIT_GRANT": True,
    "COMPLIANT_BCP_RFC9700_PASSWORD_GRANT": True,
    "COMPLIANT_BCP_RFC9700_PKCE_METHOD": True,
    "COMPLIANT_BCP_RFC9700_ACCESS_TOKEN_TRANSPORT": True,
    "COMPLIANT_BCP_RFC9700_AUTHZ_RESPONSE_ISS": True,
    "COMPLIANT_BCP_RFC9700_TOKEN_STORAGE": True,
    "DCR_ENABLED": ENVIRONMENT.oauth_registration,
    "CIMD_ENABLED": ENVIRONMENT.oauth_client_documents,
    "CIMD_METADATA_FETCHER": "identity.oauth.server.DocumentReader",
    "CIMD_REGISTRATION_PERMISSION_CLASSES": ("identity.oauth.server.AskedByUser",),
    "OAUTH2_RESPONSE_TYPES_SUPPORTED": ["code"],
    "OAUTH2_GRANT_TYPES_SUPPORTED": ["authorization_code", "refresh_token"],
    "OAUTH2_TOKEN_ENDPOINT_AUTH_METHODS_SUPPORTED": ["none"],
}

# People sign in at the admin, also by a form that does not know the page they wanted.
LOGIN_URL, LOGIN_REDIRECT_URL = "admin:login", "admin:index"
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    *(["identity.company_login.CompanyBackend"] if ENVIRONMENT.login_issuer else []),
]

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
LANGUAGES = [("en", "English"), ("de", "Deutsch")]  # Of the pages for people; CONTRIBUTING.md adds one
LOCALE_PATHS = [BASE_DIR / "locale"]
FORMAT_MODULE_PATH = "config.formats"

STATIC_URL = "/static/"
STATIC_ROOT = DATA_DIR / "static"
WHITENOISE_USE_FINDERS = True

DATA_UPLOAD_MAX_MEMORY_SIZE = ENVIRONMENT.max_request_bytes

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "identity.authentication.AccessTokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["access.permissions.AccessRequired"],
    "DEFAULT_PARSER_CLASSES": ["catalogue.rest.base.BoundedJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_FILTER_BACKENDS": ["catalogue.rest.base.StrictFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "catalogue.rest.base.Pages",
    "DEFAULT_SCHEMA_CLASS": "catalogue.rest.schema.DescribedByDocstrings",
    "DEFAULT_METADATA_CLASS": None,
    "EXCEPTION_HANDLER": "catalogue.rest.base.answer_with_problem",
    "URL_FORMAT_OVERRIDE": None,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Workflow Catalogue",
    "DESCRIPTION": (
        "Everything that an administrator sees, for dashboards and scripts: sources, "
        "workflows, discovery runs and executions. Every request requires an access token or "
        "the session of a staff user. An access token needs the scope `catalogue:admin`, or "
        "`catalogue:read` for reading. The scope `workflows:read` is enough to read exposed "
        "workflows and the token's own executions, and `workflows:run` to start, read and "
        "cancel its own executions."
    ),
    "VERSION": VERSION,
    "OAS_VERSION": "3.1.1",
    "TAGS": [
        {"name": "Root", "description": "Links to everything else."},
        {"name": "Settings", "description": "Settings that can be changed while the product runs."},
        {"name": "Sources", "description": "Connections to engines."},
        {"name": "Workflows", "description": "What engines offer and how curators present it."},
        {"name": "Tools", "description": "HTTP calls that are declared as tools."},
        {
            "name": "Toolsets",
            "description": "Subsets of the exposed workflows, each with its own MCP address.",
        },
        {
            "name": "Discovery runs",
            "description": "What each listing of a source found, changed and skipped.",
        },
        {
            "name": "Changes to review",
            "description": "Changes by engines that wait for a curator's decision.",
        },
        {"name": "Executions", "description": "The record of every run."},
        {"name": "Approvals", "description": "Calls that a person must approve."},
        {"name": "Statistics", "description": "What was called, how fast it was and how often it failed."},
        {
            "name": "Natural-language requests",
            "description": "Describe what you want, and the right tool runs.",
        },
        {"name": "Result cache", "description": "Stored results that answer identical calls."},
        {"name": "Audit", "description": "Who did what, when and from where, sealed by a chain of digests."},
        {"name": "Tokens", "description": "Who has access, without the secrets."},
        {
            "name": "Configuration as code",
            "description": "Export and import of the curation as one document.",
        },
    ],
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["access.permissions.AnyoneKnown"],
    "SCHEMA_PATH_PREFIX": "/api/",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "ActionEnum": "catalogue.models.WorkflowFilter.Action",
        "ApprovalState": "executions.models.Approval.State",
        "CancelOutcome": "executions.interacting.CancelOutcome",
        "DoorEnum": "executions.models.Execution.Door",
        "DiscoveryOutcome": "catalogue.models.DiscoveryRun.Outcome",
        "ErrorKind": "executions.models.ErrorKind",
        "ExecutionState": "executions.models.State",
        "HealthState": "catalogue.models.Source.HealthState",
        "ReviewKind": "catalogue.models.Review.Kind",
        "AuditKind": "audit.models.Kind",
        "HistoryDoor": "catalogue.models.HistoryEntry.Door",
        "HistoryKind": "catalogue.models.HistoryEntry.Kind",
        "RequestFailure": "orchestration.models.Failure",
        "RequestStage": "orchestration.models.Stage",
        "RequestStatus": "orchestration.models.WorkflowRequest.Status",
        "StageState": "orchestration.models.StageState",
        "TokenState": "identity.models.TokenState",
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "catalogue.rest.schema.describe_errors",
        "catalogue.rest.schema.suit_generators",
        "catalogue.rest.schema.give_ids_their_types",
        "catalogue.rest.schema.require_discriminators",
    ],
}

# Debug pages show settings, so this one hides its password; `config.celery` reads it.
CELERY_BROKER_URL = ENVIRONMENT.celery_broker_url


# Debug pages hide values with a name such as secret.
SECRET_VARIABLES = secret_variables()
SECRETS_DIR = Path(ENVIRONMENT.secrets_dir) if ENVIRONMENT.secrets_dir else DATA_DIR / "secrets"


CATALOGUE = cast(Environment, LiveSettings(dict(ENVIRONMENT)))  # For the rooms
LIVE_SETTINGS = {  # Those that administrators can change; `is_given`: the environment sets it
    name: field | {"is_given": name in ENVIRONMENT.model_fields_set} for name, field in CHANGEABLE.items()
}
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if ENVIRONMENT.email_host else 'dummy'}.EmailBackend"
EMAIL_HOST, EMAIL_PORT = ENVIRONMENT.email_host, ENVIRONMENT.email_port
EMAIL_HOST_USER = ENVIRONMENT.email_host_user
EMAIL_HOST_PASSWORD = ENVIRONMENT.email_host_password.get_secret_value()
EMAIL_USE_TLS = ENVIRONMENT.email_security == "starttls"
EMAIL_USE_SSL = ENVIRONMENT.email_security == "tls"
EMAIL_TIMEOUT = 20  # Seconds
DEFAULT_FROM_EMAIL = ENVIRONMENT.email_from
FAVICON = "config/favicon.svg"


# What rooms add to pages of the rooms below.
ADMIN_EXTENSIONS: dict[str, Any] = {
    "workflow_columns": [
        "executions.admin.usage.calls",
        "executions.admin.usage.failures",
        "executions.admin.usage.last_call",
        "mcp_bridge.admin.additions.tokens",
    ],
    "workflow_orders": [  # Expressions to sort the columns by
        "executions.admin.usage.usage_orders",
        "mcp_bridge.admin.additions.token_orders",
    ],
    # Set on all rows of a page what the columns show
    "prepare_workflows": ["executions.admin.usage.note_usage", "mcp_bridge.admin.additions.weigh"],
    "workflow_actions": ["mcp_bridge.admin.publishing.offer_publishing"],
    "workflow_filters": ["executions.admin.usage.UseFacet", "executions.dashboard.WorkflowsOfInbox"],
    "source_filters": ["executions.dashboard.SourcesOfInbox"],
    "workflow_facts": ["identity.admin.reach.callers_fact", "executions.admin.policies.cache_fact"],
    "workflow_links": ["executions.admin.running.link_to_run", "identity.admin.tokens.link_to_callers"],
    "workflow_sections": ["executions.admin.usage.usage_section"],
    "workflow_runs": ["executions.admin.running.recent_runs"],
    "tool_entries": ["mcp_bridge.admin.additions.tool_entry"],  # How agents see a workflow
    "source_facts": [
        "executions.admin.executions.engine_runs_fact",
        "executions.admin.executions.webhook_fact",
    ],
    "candidate_facts": ["executions.admin.usage.recent_callers"],  # In the queue of curation
    "subscription_callers": ["identity.admin.tokens.callers_to_follow"],
    "source_losses": ["executions.admin.executions.executions_consequence"],  # Before a deletion
    "cards": {"orchestration.view_workflowrequest": "orchestration.admin.requests_card"},
    "inbox": {
        "mcp_bridge.view_accesstoken": "identity.admin.tokens.token_rows",
        "catalogue.view_toolset": "mcp_bridge.admin.toolsets.toolset_rows",
    },
    "first_steps": ["identity.admin.tokens.make_a_token"],
    "addresses": ["identity.tokens.resource_url"],  # Where clients connect
}

UNFOLD = {
    "SITE_TITLE": "Workflow Catalogue",
    "SITE_HEADER": "Workflow Catalogue",
    "SITE_SUBHEADER": lambda request: gettext("version {version}, times in {zone}").format(
        version=VERSION, zone=get_current_timezone_name()
    ),
    "SITE_SYMBOL": "account_tree",
    "SITE_URL": None,
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": STATIC_URL + FAVICON}],
    "COMMAND": {"search_callback": "catalogue.admin.site.search_everything"},
    "ACCOUNT": {"navigation": "identity.second_factor.account_links"},
    "SHOW_HISTORY": True,
    "SHOW_LANGUAGES": True,
    "SHOW_VIEW_ON_SITE": False,
    "SCRIPTS": [
        lambda request: static("catalogue/admin/confirm.js"),
        lambda request: static("catalogue/admin/keyboard.js"),
        lambda request: static("catalogue/admin/palette.js"),
        lambda request: static("catalogue/admin/zone.js"),
    ],
    "DASHBOARD_CALLBACK": "executions.dashboard.add_dashboard",
    "COLORS": {
        "primary": {
            "50": "#eff8f8",
            "100": "#d7edee",
            "200": "#b3dcdf",
            "300": "#80c2c8",
            "400": "#469fa9",
            "500": "#2f929e",
            "600": "#216b77",
            "700": "#205862",
            "800": "#214952",
            "900": "#1f3e46",
            "950": "#0f272f",
        }
    },
    "SIDEBAR": {
        "show_search": True,
        "command_search": True,
        "navigation": "config.menu.navigation",
    },
    "TABS": "config.menu.tabs",
    "GLOBAL_CALLBACK": "config.menu.add_place",
}
