"""The settings of a source with a declared engine, and sending the requests of its declaration."""

import asyncio
import base64
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import quote, unquote, urlencode, urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator

from connectors import settings
from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    login_failure,
)
from connectors.formats.json import LISTING_DEPTH, write_json
from connectors.formats.yaml import UnusableText
from connectors.http_job.declaration import (
    Answer,
    Cancel,
    Declaration,
    LoginRequest,
    Request,
    Retry,
    Step,
    find,
    read_declaration,
)
from connectors.http_job.template import (
    fill_headers,
    fill_json,
    fill_pairs,
    fill_path,
    placeholders_in,
    to_pairs,
)
from connectors.network.client import EngineClient, Multipart
from connectors.network.headers import objection_to_value
from connectors.network.oauth import ClientCredentials
from connectors.network.policy import normalise_base_url
from connectors.network.redaction import extract_error_message
from connectors.settings import REQUESTS, FieldProblem, SourceConfig, hint
from connectors.simplified import identifier

OWN: Literal["own"] = "own"
Preset = Literal[
    "own", "airflow", "argo", "awx", "buildbot", "conductor", "dagster", "github_actions", "jenkins", "n8n"
]
PRESETS = tuple(name for name in get_args(Preset) if name != OWN)
"""Files in presets/, in the order in which they are offered."""
OAUTH = hint(group="OAuth", only_if={"preset": OWN})
Names = Mapping[str, Any]
OnAnswer = Callable[[Request, Names, Any], None]


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
_PRESETS_WITH_VALUES = [name for name in PRESETS if declaration_of(name, "").values]
MIN_SECRET_LENGTH = 16


class HttpJobConfig(SourceConfig):
    preset: Preset = Field(
        default=OWN,
        title="Engine",
        description=f"An engine that is supported out of the box, or {OWN} for one that the declaration "
        "below describes.",
    )
    base_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="Address",
        description="The common prefix of all URLs of the engine's API, such as "
        "https://airflow.example.com. For GitHub Actions, https://api.github.com/repos/OWNER/REPOSITORY.",
        json_schema_extra=hint(address=True),
    )
    declaration: str = Field(
        default="",
        max_length=200_000,
        title="Declaration",
        description="A description of the engine's API in YAML, in the format of docs/engines.md.",
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
        description="The secret with which the engine signs its deliveries, at least 16 characters long. "
        "The source's page then shows the URL to configure in the engine. If empty, the engine is only "
        "polled.",
        json_schema_extra=hint(group="Webhook", only_if={"preset": [OWN, *_PRESETS_WITH_WEBHOOK]}),
    )
    oauth_token_url: settings.OAuthUrl = Field(
        default="", json_schema_extra=hint(address=True, group="OAuth", only_if={"preset": OWN})
    )
    oauth_client_id: settings.OAuthClientId = Field(default="", json_schema_extra=OAUTH)
    oauth_client_secret: settings.OAuthClientSecret = Field(default=SecretStr(""), json_schema_extra=OAUTH)
    oauth_scope: settings.OAuthScope = Field(default="", json_schema_extra=OAUTH)
    oauth_audience: settings.OAuthAudience = Field(default="", json_schema_extra=OAUTH)
    values: dict[str, str] = Field(
        default={},
        title="Values",
        description="Values that the declaration leaves to the source, such as ref=main for GitHub Actions.",
        json_schema_extra=hint(only_if={"preset": [OWN, *_PRESETS_WITH_VALUES]}),
    )
    min_poll_seconds: settings.MinPollSeconds = 2.0
    request_timeout_seconds: settings.RequestTimeoutSeconds = 30.0
    max_response_bytes: settings.MaxResponseBytes = 10_000_000
    details_at_once: int = Field(
        default=4,
        ge=1,
        le=32,
        title="Concurrent detail requests",
        description="For a listing that requests the details of each workflow separately.",
        json_schema_extra=REQUESTS,
    )
    details_per_listing: int = Field(
        default=10_000,
        ge=1,
        le=100_000,
        title="Detail requests per listing",
        description="A listing that needs more stops at this number, and the next listing continues.",
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
            raise FieldProblem("declaration", "Select an engine above, or declare one here.")
        known = self.declared.values
        if unknown := sorted(self.values.keys() - known.keys()):
            listed = ", ".join(known) or "none"
            raise FieldProblem(
                "values", f"{unknown[0]} is not a value of the declaration. Known values: {listed}."
            )
        if secret := self.webhook_secret.get_secret_value():
            if self.declared.webhook is None:
                raise FieldProblem("webhook_secret", "The declaration does not have a webhook.")
            if len(secret) < MIN_SECRET_LENGTH:
                raise FieldProblem("webhook_secret", f"Must have at least {MIN_SECRET_LENGTH} characters.")
        if self.declared.login.oauth and not (self.oauth_token_url and self.oauth_client_id):
            raise FieldProblem(
                "oauth_token_url", "The declared login requires the token URL and the client id."
            )
        return self

    @property
    def declared(self) -> Declaration:
        return declaration_of(self.preset, self.declaration)


def target_of(request: Request, names: Names) -> str:
    """The path below the source's address, with its query."""
    path = fill_path(request.path, names)
    query = urlencode(fill_pairs(request.query, names), quote_via=quote)
    return path + (("&" if "?" in path else "?") + query if query else "")


def content_of(request: Request, names: Names) -> dict[str, Any]:
    """`body`, `form`, or neither."""
    if request.graphql is not None:
        return {"body": {"query": request.graphql, "variables": fill_json(request.variables, names)}}
    if isinstance(request.form, str):
        return {"form": dict(to_pairs(names["arguments"]))}
    if request.form is not None:
        filled = fill_json(request.form, names).items()
        return {"form": dict(to_pairs({k: write_json(v) if isinstance(v, dict) else v for k, v in filled}))}
    if request.multipart is not None:
        filled = fill_json(request.multipart, names).items()
        texts = {k: v if isinstance(v, str) else write_json(v) for k, v in filled if v is not None}
        return {"form": Multipart(texts)}
    return {} if request.body is None else {"body": fill_json(request.body, names)}


def _is_read(request: Request) -> bool:
    return bool(request.graphql is not None or request.not_found or request.refused)


def _possible(request: Cancel | Answer, names: Names) -> Request:
    """`otherwise`, if a value that the request needs is null."""
    used = {name for _, template in request.templates for name in placeholders_in(template)}
    if request.otherwise is not None and any(names.get(name, "") is None for name in used):
        return request.otherwise
    return request


class DeclaredEngine:
    """Raises only ConnectorError. `on_answer` receives each response that expressions are applied to, or
    why there is none."""

    def __init__(
        self, config: HttpJobConfig, declared: Declaration, *, on_answer: OnAnswer | None = None
    ) -> None:
        self._declared = declared
        self._on_answer = on_answer or (lambda request, names, answer: None)
        self.values = declared.values | config.values
        secrets = {name: getattr(config, name) for name in ("password", "token")}
        self._secrets = {name: secret.get_secret_value() for name, secret in secrets.items()}
        self._client = EngineClient.of(
            config,
            base_url=config.base_url,
            headers=fill_headers(declared.headers, self.values),
        )
        self._secrets["username"] = config.username
        self._login_names = {**self.values, **self._secrets}
        self._own_headers = self._fixed_login(config)
        login = declared.login.request
        has_secrets = any(self._secrets.get(name) for name in declared.login.needs)
        self._login = None if login and login.optional and not has_secrets else login
        self._token, self._logging_in = "", asyncio.Lock()
        self._oauth = None
        if declared.login.oauth:
            seconds = config.request_timeout_seconds
            self._oauth = ClientCredentials(
                config, url=config.oauth_token_url, seconds=seconds, ca_file=config.ca_file
            )

    def __repr__(self) -> str:
        return f"DeclaredEngine({self._client})"

    async def ask(
        self,
        request: Request,
        names: Names,
        *,
        repeatable: bool = True,
        is_listing: bool = False,
        link: str = "",
    ) -> Any:
        """A successful response's JSON, or its lines. `link`: the next page of a listing, for the path."""
        try:
            if request.read == "lines":
                _, text = await self._send(self._client.request, request, names, repeatable=repeatable)
                answer: Any = text.splitlines()
            else:
                answer = await self._send(
                    self._client.request_json,
                    request,
                    names,
                    link=link,
                    repeatable=repeatable,
                    max_depth=LISTING_DEPTH,
                    is_listing=is_listing,
                    may_be_text=isinstance(request, Step),
                )
        except ConnectorError as error:
            self._on_answer(request, names, error)
            raise
        self._on_answer(request, names, answer)
        asked = f"{request.method} {fill_path(request.path, names).partition('?')[0]}"
        self._refuse(request, answer, asked, repeatable=repeatable)
        return answer

    async def tell(self, command: Cancel, names: Names) -> None:
        """Works like `ask`, but the response is read only if the declaration has expressions for it."""
        request = _possible(command, names)
        if _is_read(request) or command.not_yet:
            await self.ask(request, names)
            return
        await self._send(
            self._client.request, request, names, redirect_is_success=command.redirect_is_success
        )

    async def send_retry(self, request: Retry, names: Names) -> Any:
        """The answer, which is read only if the declaration has expressions for it; None otherwise."""
        if request.run_id is not None or _is_read(request):
            return await self.ask(request, names, repeatable=False)
        await self._send(self._client.request, request, names, repeatable=False)
        return None

    async def send_answer(self, request: Answer, names: Names) -> None:
        """Works like `tell`. Raises NotFound for a question that is not asked any more."""
        sent = _possible(request, names)
        try:
            if _is_read(sent):
                await self.ask(sent, names, repeatable=False)
            else:
                await self._send(self._client.request, sent, names, repeatable=False)
        except Rejected as error:
            status, words = error.details.get("status"), error.details.get("answer")
            if status in request.gone:
                raise NotFound(f"The engine does not ask this any more: {words or status}") from None
            if status != 403:  # It may be about this answer, and not about the credentials.
                raise
            raise Rejected(f"The engine refused the answer: {words or status}") from None

    async def locate(self, request: Request, names: Names, *, location: str) -> str:
        """The run id in the Location header of the answer to a start; empty if the header is missing or does
        not match `location`."""
        headers, _ = await self._send(self._client.request, request, names, repeatable=False)
        before, _, after = location.rstrip("/").partition("{run_id}")
        try:
            path = urlsplit(headers.get("location", "")).path.rstrip("/")
        except ValueError:
            return ""
        found = re.search(f"{re.escape(before)}([^/]+){re.escape(after)}$", path)
        return identifier(unquote(found[1])) if found else ""

    async def _send(
        self, send: Callable[..., Any], request: Request, names: Names, *, link: str = "", **options: Any
    ) -> Any:
        """The answer by `send`, a method of the client; logs in again if the engine has refused the login."""
        target, content = target_of(request, names), content_of(request, names)
        if link:
            target, content = self._client.follow(link, found_at=target), {}
        headers = fill_headers(request.headers, names)
        again_on = self._login.again_on if self._login else [401] if self._oauth else []
        login = await self._login_headers()
        try:
            return await send(request.method, target, **content, headers=headers | login, **options)
        except Rejected as error:
            # The engine did not carry the request out, so a start may be repeated, too.
            if error.details.get("status") not in again_on:
                raise
        self._forget(login)
        login = await self._login_headers()
        return await send(request.method, target, **content, headers=headers | login, **options)

    def _refuse(self, request: Request, answer: Any, asked: str, *, repeatable: bool) -> None:
        """Raises for an error that a successful response reports."""
        details = {"request": asked}
        if request.graphql is not None:
            if not isinstance(answer, dict):
                kind = InvalidAnswer if repeatable else OutcomeUnknown
                raise kind("The engine's response to a GraphQL request is not an object.")
            if errors := answer.get("errors"):
                words = extract_error_message(errors) or "it gave no reason"
                # Without data nothing was carried out (GraphQL, 7.1).
                is_refusal = repeatable or "data" not in answer
                raise (Rejected if is_refusal else OutcomeUnknown)(
                    f"{asked}: the engine returned errors: {words}", details=details
                )
        if request.not_found and find(request.not_found, answer):
            raise NotFound(f"{asked}: the engine does not know this workflow or run.", details=details)
        if isinstance(request, Cancel) and request.not_yet and find(request.not_yet, answer):
            raise Unreachable("The engine cannot do that yet.", details=details)
        if request.refused and (refusal := find(request.refused, answer)):
            words = extract_error_message(refusal) or "it gave no reason"
            raise Rejected(f"{asked}: the engine refused: {words}", details=details)

    async def _login_headers(self) -> dict[str, str]:
        if self._oauth is not None:
            return {"authorization": f"Bearer {await self._oauth.token()}"}
        if self._login is not None:
            async with self._logging_in:  # Concurrent requests share one login.
                self._token = self._token or await self._log_in()
        return self._own_headers if self._login is None else self._token_headers(self._login)

    def _token_headers(self, login: LoginRequest) -> dict[str, str]:
        return {login.header.lower(): login.value.replace("{login_token}", self._token)}

    def _forget(self, headers: dict[str, str]) -> None:
        if self._oauth is not None:
            self._oauth.forget(headers["authorization"].removeprefix("Bearer "))
        elif self._login is not None and headers == self._token_headers(self._login):
            self._token = ""

    def _fixed_login(self, config: HttpJobConfig) -> dict[str, str]:
        login = self._declared.login
        if login.basic:
            together = f"{config.username}:{self._secrets['password']}"
            word = base64.b64encode(together.encode()).decode("ascii")
            self._client.redactor.learn(word)
            return {"authorization": f"Basic {word}"}
        try:
            filled = fill_headers(login.headers, self._login_names)
        except Rejected as error:
            raise Misconfigured(error.message.removesuffix(" Nothing was sent.")) from None
        return {name.lower(): value for name, value in filled.items()}

    async def _log_in(self) -> str:
        login = self._login
        assert isinstance(login, LoginRequest)
        names = self._login_names
        try:
            answer = await self._client.request_json(
                login.method,
                target_of(login, names),
                **content_of(login, names),
                headers=fill_headers(login.headers, names),
            )
            token = find(login.token, answer)
            if not isinstance(token, str) or not token or objection_to_value(token):
                raise InvalidAnswer("the answer has no usable token.")
        except ConnectorError as error:
            raise login_failure(error, f"The login failed: {error.message}") from None
        self._client.redactor.learn(token)
        return token

    async def aclose(self) -> None:
        await self._client.aclose()
        if self._oauth is not None:
            await self._oauth.aclose()
