"""HTTP APIs as sources: each call is a run, and its response is the result or a reason to retry."""

import base64
import codecs
import json
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.message import Message
from functools import lru_cache
from math import inf
from time import monotonic
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self
from uuid import UUID

from pydantic import AfterValidator, BaseModel, Field, SecretStr, model_validator

from connectors import settings
from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import (
    InvalidAnswer,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
)
from connectors.formats.json import UnreadableJSON, parse_json, parse_values
from connectors.formats.json_schema import value_at
from connectors.http_tools.request import (
    ACCEPT,
    COOKIE,
    build_request,
    content_of,
    cookie_names,
    headers_of,
    query_of,
)
from connectors.http_tools.tool import (
    EXTRA_KEYS,
    MAX_HEADERS,
    MAX_KEY_NAME,
    HttpOperation,
    HTTPRequestSpec,
    HTTPResponseSpec,
    KeyPlace,
)
from connectors.network.client import NO_CREDENTIALS, Credentials, EngineClient
from connectors.network.headers import (
    NEVER_RECORDED,
    NOISE,
    TELLING,
    TOKEN,
    can_carry_a_key,
    objection_to_name,
    objection_to_value,
)
from connectors.network.oauth import ClientCredentials
from connectors.network.policy import AddressPolicy, http_tool_addresses, normalise_base_url
from connectors.network.redaction import MASK, Redactor, printable, shorten, words_of
from connectors.network.transport import WORDS_LIMIT, Exchange, is_phrase, retry_after, status_line
from connectors.protocol import (
    ABOUT_OUTPUT,
    ASIDE,
    Capabilities,
    Health,
    ReportProgress,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    health_of,
    ignore_progress,
)
from connectors.settings import REQUESTS, FieldProblem, SourceConfig, hint

OAUTH = {"authentication": "oauth_client_credentials"}
KEY = {"authentication": "api_key"}
BASIC = {"authentication": "basic"}
EXTRA = hint(group="Extra keys and headers")
MAX_HEADER_LENGTH = 1_000
XML_ENCODING = re.compile(rb"<\?xml[^>]{1,100}?encoding\s*=\s*[\"']([A-Za-z0-9._-]{1,40})[\"']")
JSON_TYPE = re.compile(r".*[/+-]json|(?P<several>.*[/+.-](?:ndjson|jsonl|json-?(?:lines|seq|stream)))")
TEXT_TYPE = re.compile(r"text/.*|.*[/+.-](?:xml|yaml|csv|sql|toml|javascript|graphql|x-www-form-urlencoded)")
FILE_TYPE = re.compile(r"(?:image|audio|video|font|model)/.*|.*(?:pdf|zip|proto|msgpack|cbor).*")
NOT_IN_TEXT = re.compile("[\0-\x06\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f\ufffd]")  # Logs have escape sequences
VALIDATORS = frozenset({"etag", "last-modified"})
COMPLAINT_LIMIT = 1_000  # Characters: enough for a message about each of several arguments
MESSAGE_KEYS = ("error", "message", "detail", "msg", "reason", "exception_message")
"""For texts only: a list or title with such a name may describe an argument of that name."""
REFUSED_CREDENTIALS = frozenset({401, 403})


def _checked_headers(headers: dict[str, str]) -> dict[str, str]:
    if len({name.lower() for name in headers}) < len(headers):
        raise ValueError("a header is given twice")
    for name, value in headers.items():
        objection = objection_to_name(name, constant=True) or objection_to_value(value)
        if not objection and name.lower() == "content-type":
            objection = "is decided by each request's body"
        if objection:
            raise ValueError(f"{name[:MAX_KEY_NAME]} {objection}")
    return headers


def _extra(title: str, default: Any) -> Any:
    return Field(default=default, title=f"Extra key {title}", json_schema_extra=EXTRA)


ExtraName = Annotated[
    str,
    Field(
        max_length=MAX_KEY_NAME,
        description="For an API that requires this key besides the authentication above, such as "
        "DD-APPLICATION-KEY or CF-Access-Client-Secret. Leave empty to send none.",
    ),
]


class Key(NamedTuple):
    """A secret with its place in requests."""

    setting: str
    where: KeyPlace
    name: str
    secret: SecretStr

    @property
    def place(self) -> tuple[str, str]:
        return self.where, self.name.lower() if self.where == "header" else self.name


class HttpConfig(SourceConfig):
    base_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="Base URL",
        description="The common prefix of all URLs of the API, such as https://api.example.com/v1.",
        json_schema_extra=hint(address=True),
    )
    authentication: Literal["none", "api_key", "bearer", "basic", "oauth_client_credentials"] = Field(
        default="none", title="Authentication", description="How requests authenticate."
    )
    api_key_in: KeyPlace = Field(default="header", title="Key location", json_schema_extra=hint(only_if=KEY))
    api_key_name: str = Field(
        default="X-API-Key",
        max_length=MAX_KEY_NAME,
        title="Name of the header, parameter or cookie",
        json_schema_extra=hint(only_if=KEY),
    )
    api_key: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="API key",
        description='Sent as it is. If the API expects "Authorization: Bearer ...", choose bearer instead.',
        json_schema_extra=hint(only_if=KEY),
    )
    token: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="Bearer token",
        json_schema_extra=hint(only_if={"authentication": "bearer"}),
    )
    username: str = Field(
        default="", max_length=500, title="User name", json_schema_extra=hint(only_if=BASIC)
    )
    password: SecretStr = Field(
        default=SecretStr(""), title="Password", json_schema_extra=hint(only_if=BASIC)
    )
    oauth_token_url: settings.OAuthUrl = Field(
        default="", json_schema_extra=hint(address=True, only_if=OAUTH)
    )
    oauth_client_id: settings.OAuthClientId = Field(default="", json_schema_extra=hint(only_if=OAUTH))
    oauth_client_secret: settings.OAuthClientSecret = Field(
        default=SecretStr(""), json_schema_extra=hint(only_if=OAUTH)
    )
    oauth_scope: settings.OAuthScope = Field(default="", json_schema_extra=hint(only_if=OAUTH))
    oauth_audience: settings.OAuthAudience = Field(default="", json_schema_extra=hint(only_if=OAUTH))
    extra_key_1_in: KeyPlace = _extra("1: location", "header")
    extra_key_1_name: ExtraName = _extra("1: name of the header, parameter or cookie", "")
    extra_key_1: settings.HeaderSecret = _extra("1", SecretStr(""))
    extra_key_2_in: KeyPlace = _extra("2: location", "header")
    extra_key_2_name: ExtraName = _extra("2: name of the header, parameter or cookie", "")
    extra_key_2: settings.HeaderSecret = _extra("2", SecretStr(""))
    extra_key_3_in: KeyPlace = _extra("3: location", "header")
    extra_key_3_name: ExtraName = _extra("3: name of the header, parameter or cookie", "")
    extra_key_3: settings.HeaderSecret = _extra("3", SecretStr(""))
    extra_headers: Annotated[dict[str, str], AfterValidator(_checked_headers)] = Field(
        default={},
        max_length=20,
        title="Extra headers",
        description="Headers of every request whose values are not secret, such as "
        "Notion-Version=2022-06-28. They are stored, shown and exported in plain text.",
        json_schema_extra=EXTRA,
    )
    request_timeout_seconds: settings.RequestTimeoutSeconds = 30.0
    max_response_bytes: settings.MaxResponseBytes = 10_000_000
    follow_redirects: bool = Field(
        default=True,
        title="Follow redirects",
        description="Credentials are never sent to another host.",
        json_schema_extra=REQUESTS,
    )
    promise_output_schemas: bool = Field(
        default=False,
        title="Enforce documented responses",
        description="Clients also get the output schemas of imported documents, and a response that "
        "violates its schema is an error. If off, such a response is delivered unchanged, and its "
        "execution's page shows what is wrong.",
        json_schema_extra=REQUESTS,
    )
    verify_tls: settings.VerifyTls = True
    ca_file: settings.CaFile = ""

    @model_validator(mode="after")
    def _keys_have_places(self) -> Self:
        taken = {("header", name.lower()) for name in self.extra_headers}
        if self.authentication not in ("none", "api_key"):
            taken.add(("header", "authorization"))
        for key in self.keys:
            if objection := _objection_to_place(key, taken):
                raise FieldProblem(f"{key.setting}_name", objection)
            if key.where == "cookie" and ";" in key.secret.get_secret_value():
                raise FieldProblem(key.setting, "Enter the value of one cookie, without a semicolon.")
            taken.add(key.place)
        return self

    @property
    def keys(self) -> Iterator[Key]:
        """The API key, if that is the authentication, and the extra keys that have a name or a value."""
        used = ("api_key", *EXTRA_KEYS) if self.authentication == "api_key" else EXTRA_KEYS
        for setting in used:
            where, name, secret = (getattr(self, setting + part) for part in ("_in", "_name", ""))
            if name or secret.get_secret_value() or setting == "api_key":
                yield Key(setting, where, name, secret)

    @property
    def lacking(self) -> str:
        """Names of the credentials without a value, for errors."""
        needed = {
            "api_key": {"API key": self.api_key.get_secret_value()},
            "bearer": {"bearer token": self.token.get_secret_value()},
            # Some APIs expect a key as the user name, and no password.
            "basic": {"user name": self.username},
            "oauth_client_credentials": {
                "OAuth token URL": self.oauth_token_url,
                "OAuth client id": self.oauth_client_id,
                "OAuth client secret": self.oauth_client_secret.get_secret_value(),
            },
        }
        own = [name for name, value in needed.get(self.authentication, {}).items() if not value]
        extra = [
            f"{key.setting.replace('_', ' ')} ({key.name})"
            for key in self.keys
            if key.setting in EXTRA_KEYS and not key.secret.get_secret_value()
        ]
        return ", ".join(own + extra)


def _objection_to_place(key: Key, taken: set[tuple[str, str]]) -> str:
    if key.where == "header" and key.name and not can_carry_a_key(key.name):
        return "This is not a valid name for a header that carries a key."
    if key.where == "cookie" and key.name and not TOKEN.fullmatch(key.name):
        return "This is not a valid name of a cookie."
    if not key.name:
        place = "parameter" if key.where == "query" else key.where
        return f"The {place} that carries the key must have a name. Enter it, or remove the key."
    all_cookies = ("header", COOKIE.lower())
    if key.place == all_cookies:
        is_taken = any(place == all_cookies or place[0] == "cookie" for place in taken)
    else:
        is_taken = key.place in taken or (key.where == "cookie" and all_cookies in taken)
    if is_taken:
        return f"Another credential or extra header of this source is sent in {key.name} already."
    return ""


def basic_word(username: str, password: SecretStr) -> str:
    """After "Basic", in UTF-8 (RFC 7617, 2.1)."""
    return base64.b64encode(f"{username}:{password.get_secret_value()}".encode()).decode("ascii")


class Authorization:
    """One source's credentials. Make one per event loop, close it with `aclose`."""

    def __init__(self, config: HttpConfig, *, policy: AddressPolicy) -> None:
        self._lacking = config.lacking
        keys = [(*key.place, key.secret.get_secret_value()) for key in config.keys]
        headers = {name: secret for where, name, secret in keys if where == "header"}
        if config.authentication == "bearer":
            headers["authorization"] = f"Bearer {config.token.get_secret_value()}"
        elif config.authentication == "basic":
            headers["authorization"] = f"Basic {basic_word(config.username, config.password)}"
        if cookies := [f"{name}={secret}" for where, name, secret in keys if where == "cookie"]:
            headers["cookie"] = "; ".join(cookies)
        query = tuple((name, secret) for where, name, secret in keys if where == "query")
        # All but a token that must be requested
        self._fixed = Credentials(headers=headers, query=query) if headers or query else NO_CREDENTIALS
        self.headers = {name.lower(): value for name, value in config.extra_headers.items()}
        self._cookies = {name for where, name, _ in keys if where == "cookie"}
        self._oauth: ClientCredentials | None = None
        if config.authentication == "oauth_client_credentials" and not self._lacking:
            url, seconds = config.oauth_token_url, config.request_timeout_seconds
            self._oauth = ClientCredentials(
                config, url=url, seconds=seconds, ca_file=config.ca_file, policy=policy
            )

    @property
    def is_renewable(self) -> bool:
        return self._oauth is not None

    async def credentials(self) -> Credentials:
        """Raises Misconfigured, or what requesting a token raises."""
        if self._lacking:
            raise Misconfigured(
                f"The source does not have the {self._lacking}. Enter it in the source's settings."
            )
        if self._oauth is None:
            return self._fixed
        token = {"authorization": f"Bearer {await self._oauth.token()}"}
        return Credentials(headers={**token, **self._fixed.headers}, query=self._fixed.query)

    def forget(self, refused: Credentials) -> None:
        """Request another token for the next call, if these are a token."""
        if self._oauth is not None:
            self._oauth.forget(refused.headers["authorization"].partition(" ")[2])

    @property
    def has_credentials(self) -> bool:
        return self._oauth is not None or self._fixed is not NO_CREDENTIALS

    def refuse_overlap(self, operation: HttpOperation, spec: HTTPRequestSpec) -> None:
        """Raises Misconfigured if the tool sets a header or parameter that the source sets, Rejected if an
        entry of an argument does."""
        sent = NO_CREDENTIALS if operation.anonymous else self._fixed
        reserved = self.headers.keys() | sent.headers.keys()
        cookies = set() if operation.anonymous else self._cookies
        if cookies:
            reserved -= {COOKIE.lower()}  # Cookies of the tool and of the source share this header.
        headers = {name.lower() for name in (*spec.headers, operation.idempotency_header)}
        query = spec.query_params.keys() & {name for name, _ in sent.query}
        declared = {place.name for _, place in operation.by_place["query"]}
        declared |= operation.constant_values["query"].keys()
        if given := sorted(query - declared):
            raise Rejected(f"{given[0]} is reserved for the source's keys; leave it out. Nothing was sent.")
        if taken := sorted(headers & reserved | query | cookie_names(spec) & cookies):
            raise Misconfigured(
                f"The tool sets {taken[0]}, which is reserved for the source's keys and headers. Remove it "
                "from the tool (import its document again, if it comes from one), or from the source."
            )

    async def aclose(self) -> None:
        if self._oauth is not None:
            await self._oauth.aclose()


class HttpConnector:
    """An HTTP API. Its operations are declared as tools or imported from an OpenAPI document."""

    kind: ClassVar[str] = "http"
    label: ClassVar[str] = "HTTP API (declared tools)"
    Config: ClassVar[type[BaseModel]] = HttpConfig
    capabilities: ClassVar[Capabilities] = Capabilities(
        lists_workflows=False, keeps_runs=False, differ_by_workflow=True
    )

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        policy = http_tool_addresses()
        self._authorization = Authorization(config, policy=policy)
        self._client = EngineClient.of(config, base_url=config.base_url, policy=policy)

    def __repr__(self) -> str:
        return f"HttpConnector({self._config.base_url})"

    def capabilities_for(self, workflow: WorkflowRef) -> Capabilities:
        operation = HttpOperation.of(workflow)
        is_idempotent = operation.is_safe or operation.method == "PUT" or bool(operation.idempotency_header)
        # Cancelling a request that only reads changes nothing.
        return replace(self.capabilities, idempotent_start=is_idempotent, cancellable_start=operation.is_safe)

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        credentials = await self._authorization.credentials()
        sent = {"accept": ACCEPT} | self._authorization.headers
        answer = await self._client.exchange(
            "GET", "", headers=sent, credentials=credentials, repeatable=True
        )
        # Gateways answer 403, and some APIs 401 without credentials, even if each tool works.
        if answer.status == 401 and self._authorization.has_credentials:
            raise Rejected("The API rejected the source's credentials at its base URL with 401.")
        got = "a token was obtained, and " if self._authorization.is_renewable else ""
        reached = f"{self._config.base_url} can be reached: {got}it answered {answer.status}."
        if not self._authorization.has_credentials:
            return reached
        return f"{reached} Only a tool call shows whether the API accepts the source's credentials."

    async def discover(self) -> AsyncGenerator[WorkflowDefinition | RejectedDefinition]:
        """Yields nothing: an API's tools are declared in the catalogue."""
        for definition in list[WorkflowDefinition]():
            yield definition

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        operation = HttpOperation.of(workflow)
        spec = build_request(operation, base_url=self._config.base_url, arguments=arguments)
        self._authorization.refuse_overlap(operation, spec)
        started_at = datetime.now(UTC)
        answer = await self._send(operation, spec, str(key), seconds=workflow.timeout_seconds or inf)
        call = Call(
            operation=operation,
            is_promised=operation.output_is_promised or self._config.promise_output_schemas,
            spec=spec,
            answer=answer,
            redactor=self._client.redactor,
            started_at=started_at,
        )
        return Started(run_id=str(key), snapshot=call.snapshot())

    async def poll(self, run: RunRef) -> RunSnapshot:
        raise NotFound("The response to this request was its result. It cannot be polled later.")

    async def cancel(self, run: RunRef) -> None:
        raise Unsupported("A request to an HTTP API cannot be cancelled.")

    async def aclose(self) -> None:
        await self._client.aclose()
        await self._authorization.aclose()

    async def _send(
        self, operation: HttpOperation, spec: HTTPRequestSpec, key: str, *, seconds: float
    ) -> Exchange:
        """Errors about the answer have the request in their details."""
        # A request that only reads is cancelled by its caller, just after what has come is taken.
        cut_after = max(seconds - 1, seconds / 2) if operation.is_safe else seconds
        until = monotonic() + (inf if operation.is_safe else seconds)
        is_first = True
        content, content_type = content_of(operation, spec)
        headers = headers_of(operation, spec, key=key, content_type=content_type)
        headers |= self._authorization.headers
        while True:
            credentials = NO_CREDENTIALS if operation.anonymous else await self._authorization.credentials()
            try:
                answer = await self._client.exchange(
                    spec.method,
                    spec.url,
                    query=query_of(spec),
                    comma_separated=operation.comma_separated,
                    content=content,
                    headers=headers,
                    credentials=credentials,
                    repeatable=operation.is_safe,
                    follow_redirects=self._config.follow_redirects,
                    seconds=max(0.0, until - monotonic()),
                    cut_after=cut_after,
                )
            except (Unreachable, OutcomeUnknown, InvalidAnswer) as error:
                error.details |= {"request": spec.model_dump(mode="json")}
                raise
            refused = answer.status == 401 and not answer.carried_out
            if not (refused and is_first and not operation.anonymous and self._authorization.is_renewable):
                return answer
            # A 401 means that the request was not carried out, so any method may be repeated, once.
            self._authorization.forget(credentials)
            is_first = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """An answer's body, with secrets masked."""

    body: Any = None  # The JSON value, else the text, else a sentence that describes it; None: no body
    block: dict[str, Any] | None = None  # MCP's content block of a body that is neither JSON nor text
    objection: str = ""  # What could not be read of it
    note: str = ""  # What was changed in it


def read_body(answer: Exchange, redactor: Redactor) -> Received:
    body = answer.content
    media_type, charset = _content_type(str(answer.headers.get("content-type", ""))[:MAX_HEADER_LENGTH])
    json_type = JSON_TYPE.fullmatch(media_type)
    if not body or (json_type and not body.strip()):
        return Received()
    encoding = charset or _encoding_of(body, is_cut=bool(answer.cut))
    if json_type:
        return _json_body(answer, media_type, encoding, redactor, are_several=bool(json_type["several"]))
    text = _decoded(body, encoding)
    text = text.rstrip("\ufffd") if answer.cut else text  # Half of a letter
    if TEXT_TYPE.fullmatch(media_type):
        return Received(body=redactor.text(text))
    if not media_type:  # The header does not say what it is.
        with suppress(UnreadableJSON):
            return Received(body=redactor.answer(parse_json(body), body))
    # Any bytes are text in the encodings that are only guessed.
    is_sure = charset or encoding in ("utf-8", "utf-16", "utf-32")
    if is_sure and not (FILE_TYPE.fullmatch(media_type) or NOT_IN_TEXT.search(text)):
        return Received(body=redactor.text(text))
    media_type = media_type or "application/octet-stream"
    kind = media_type.partition("/")[0]
    encoded = base64.b64encode(body).decode("ascii")
    block: dict[str, Any] = {"type": kind, "data": encoded, "mimeType": media_type}
    if kind not in ("image", "audio"):
        resource = {"uri": answer.place, "mimeType": media_type, "blob": encoded}
        block = {"type": "resource", "resource": resource}
    return Received(body=f"{len(body):,} bytes of {media_type}.", block=block)


def _json_body(
    answer: Exchange, media_type: str, encoding: str, redactor: Redactor, *, are_several: bool
) -> Received:
    text = answer.content
    if encoding != "utf-8":
        text = _decoded(text, encoding).encode("utf-8", "replace")
    objection = "The text is not valid JSON."
    if not are_several and not answer.cut:
        try:
            return Received(body=redactor.answer(parse_json(text), text))
        except UnreadableJSON as error:
            objection = str(error)
    whole = _decoded(text, "utf-8")
    values, rest, numbers = parse_values(whole)
    last_line = whole.rstrip().rpartition("\n")[2].strip()
    if not values or (rest and not answer.cut and rest.strip() != last_line):
        label = shorten(redactor.text(media_type), WORDS_LIMIT)
        why = f"the answer is labelled {label}. {objection.removesuffix('.')}"
        return Received(body=redactor.text(whole), objection=why)
    is_one = len(values) == 1 and not (are_several or answer.cut or rest)
    why = f"its last line is not JSON: {shorten(redactor.text(last_line), WORDS_LIMIT)}"
    unheld = ", ".join(shorten(number, 50) for number in numbers[:5])
    return Received(
        body=redactor.answer(values[0] if is_one else values, text),
        objection=why if rest else "",
        note=f"Numbers that JSON cannot hold are null here: {unheld}" if numbers else "",
    )


@lru_cache(maxsize=100)
def _content_type(header: str) -> tuple[str, str]:
    """The lower-case media type, and the name of a known encoding; empty: the header names none."""
    message = Message()
    # Some servers send it twice, or in quotes.
    message["content-type"] = re.sub(r"[\"']", "", header).partition(",")[0]
    said = message.get_content_type() if "/" in message["content-type"] else ""
    charset = message.get_param("charset")
    return said, _known_encoding(charset) if isinstance(charset, str) and charset else ""


def _known_encoding(name: str) -> str:
    """Empty, as if it were not named, for codecs that are not for text (zip) or not for all texts (idna), and
    for the encoding that many name whatever they send."""
    try:
        found = codecs.lookup(name).name
        b"\xff ".decode(found, "replace")
    except (LookupError, ValueError):
        return ""
    return "" if found in ("ascii", "utf-8", "idna", "punycode", "utf-7") else found


def _encoding_of(text: bytes, *, is_cut: bool) -> str:
    """Guesses for a text whose header names no encoding: by its first bytes, else UTF-8 if most of it is
    valid, else the usual encoding of Western systems that do not name theirs."""
    if not (found := json.detect_encoding(text)).startswith("utf-8"):
        return found
    if declared := XML_ENCODING.match(text):
        return _known_encoding(declared[1].decode("ascii")) or "utf-8"
    try:
        codecs.utf_8_decode(text, "strict", not is_cut)
    except UnicodeDecodeError:
        read = text.decode("utf-8", "replace")
        return "utf-8" if len(re.findall("[^\0-\x7f\ufffd]", read)) > read.count("\ufffd") else "cp1252"
    return "utf-8"


def _decoded(body: bytes, encoding: str) -> str:
    return body.decode(encoding, "replace").removeprefix("\ufeff")


def complaint_of(status: int, body: bytes, redactor: Redactor) -> str:
    """A JSON body's message, then its rest as JSON: `Invalid: {"field":"amount"}`. Bounded and without
    secrets; for other bodies, the text. APIs report a wrong argument in too many ways to select a part."""
    try:
        # Of a larger body only the message is shown.
        value = parse_json(body) if len(body) <= 64_000 else None
    except UnreadableJSON:
        value = None
    if not isinstance(value, dict | list):
        # Redacted before it is cut, so that no half of a secret remains.
        return shorten(words_of(body, redactor), COMPLAINT_LIMIT)
    # Redacted where it is text: a secret may be a number, or part of a name.
    message, rest = _split_message(value, status)
    message = printable(redactor.text(message))
    if not rest:
        return shorten(message, COMPLAINT_LIMIT)
    written = printable(redactor.text(json.dumps(rest, ensure_ascii=False, separators=(",", ":"))))
    return shorten(f"{message.removesuffix('.')}: {written}" if message else written, COMPLAINT_LIMIT)


def _split_message(value: Any, status: int) -> tuple[str, Any]:
    """The message, and the rest without empty values and the status, which is said already."""
    if not isinstance(value, dict):
        return "", value
    rest = {
        name: item
        for name, item in value.items()
        if item not in (None, "", [], {}) and str(item) != str(status) and not is_phrase(str(item), status)
    }
    for key in MESSAGE_KEYS:
        if isinstance(said := rest.get(key), str):
            return rest.pop(key), rest
        if isinstance(said, dict) and key in ("error", "detail"):
            message, inner = _split_message(said, status)
            if message:
                return message, {name: item for name, item in (rest | {key: inner}).items() if item != {}}
    return "", rest


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    operation: HttpOperation
    is_promised: bool  # The output may have to match a schema of the body.
    spec: HTTPRequestSpec
    answer: Exchange
    redactor: Redactor
    started_at: datetime

    def snapshot(self) -> RunSnapshot:
        received = read_body(self.answer, self.redactor)
        self._check_is_final(received)
        failure = self._failure()
        if failure and self.answer.carried_out:
            failure = f"{failure.removesuffix('.')}. The request itself was carried out."
        status, is_empty = self.answer.status, received.body is None and not self.answer.body.strip()
        headers = self._telling_headers(is_empty=is_empty)
        output, note = self._output(received), received.note
        if is_empty and not (self.is_promised or self.operation.output):
            output = {"status": status, "headers": headers}
        elif headers or is_empty or status not in (200, 201):
            said = [] if headers and status == 200 else [f"Status {status_line(status)}"]
            sent = {
                name.decode("latin-1").lower(): name.decode("latin-1") for name, _ in self.answer.headers.raw
            }
            said += [f"{sent.get(name, name)}: {value}" for name, value in headers.items()]
            note = " · ".join([*said, note] if note else said)
        # Nearly every API sends them, few agents need them, and another note costs the structured content.
        # So are all where the tool says what its output is.
        asides = {*headers} if self.operation.output else {*VALIDATORS}
        asides -= {*self.operation.response_headers}
        is_aside = status in (200, 201) and not received.note and headers and headers.keys() <= asides
        notes = [{"type": "text", "text": note, "_meta": ASIDE if is_aside else ABOUT_OUTPUT}] if note else []
        content = [received.block, *notes] if received.block else notes
        return RunSnapshot(
            state=RunState.FAILED if failure else RunState.COMPLETED,
            output=None if failure else output,
            error=failure,
            content=None if failure or not content else content,
            unread=None if failure else self._unread(received.objection),
            needs_operator=self.answer.status in REFUSED_CREDENTIALS,
            may_have_effect=bool(failure) and self._may_have_effect,
            started_at=self.started_at,
            finished_at=datetime.now(UTC),
            raw=self._raw(received),
        )

    def _output(self, received: Received) -> Any:
        """Missing fields are left out; the output schema says whether they may be missing. What could not be
        read has no fields."""
        if not self.operation.output or received.objection:
            return received.body
        output = {}
        for field, pointer in self.operation.output.items():
            with suppress(LookupError):
                output[field] = value_at(received.body, pointer)
        return output

    def _unread(self, why: str) -> InvalidAnswer | None:
        if self.answer.cut:
            why = f"the answer had not ended {self.answer.cut}; {len(self.answer.body):,} bytes had come"
            why += "" if self.operation.is_safe else ", and what was asked for may not be done yet"
        return InvalidAnswer(f"{self._place()}: {why}.") if why else None

    def _telling_headers(self, *, is_empty: bool) -> dict[str, str]:
        """Returns what the body does not say; without a body, all but what is of no use to an agent."""
        sent, names = self.answer.headers, []
        for name in sent:
            is_about_body = name.startswith("content-") and self.spec.method != "HEAD"
            is_wanted = is_empty or name in VALIDATORS or name in self.operation.response_headers
            tells = (is_wanted and not is_about_body) or TELLING.search(name)
            if tells and sent[name] and not NOISE.search(name):
                names.append(name)
        values = [self.redactor.text(printable(sent[name])) for name in names[:MAX_HEADERS]]
        shown = [shorten(value, 10_000 // len(values)) for value in values]
        # Of a 303, the place where the result was.
        own = {"Location": self.answer.place} if self.answer.carried_out else {}
        return own | dict(zip(names, shown, strict=False))

    def _check_is_final(self, received: Received) -> None:
        """Raises Unreachable for an answer to try again after, OutcomeUnknown for one that leaves it open."""
        if self.answer.carried_out:
            return
        status = self.answer.status
        wait = retry_after(self.answer.headers) if status in (429, 503) else None
        if status == 429 or (status == 503 and wait is not None):
            raise Unreachable(self._line(), retry_after=wait, details=self._raw(received))
        # A gateway has given up; the server behind it may still carry the request out.
        if status in (408, 502, 504) and not self.operation.is_safe:
            reason = f"{self._line().removesuffix('.')}. The API may have carried it out."
            raise OutcomeUnknown(reason, details=self._raw(received))

    @property
    def _may_have_effect(self) -> bool:
        """Returns True if a repetition, which has another idempotency key, could take effect twice."""
        if self.operation.is_safe:
            return False
        status = self.answer.status
        if self.answer.carried_out or 200 <= status < 300:
            return True
        # Usual responses to a processed form; after 307 and 308, the request is not yet processed.
        is_open = status >= 500 or status in (300, 301, 302, 303)
        return is_open and self.operation.method not in ("PUT", "DELETE")  # RFC 9110, 9.2.2

    def _failure(self) -> str:
        """Empty: success, also of a question whether something has changed."""
        status = self.answer.status
        if self.answer.not_followed:
            return f"{self._place()}: {self.answer.not_followed}"
        if status in REFUSED_CREDENTIALS:
            return f"{self._line().removesuffix('.')}. Check the source's credentials and their permissions."
        if 200 <= status < 300 or status == 304:
            return ""
        return self._line()

    def _line(self) -> str:
        """`GET /orders/7: the API answered 404 Not Found: no such order`."""
        status, body = self.answer.status, self.answer.content
        place = self.answer.headers.get("location", "") if 300 <= status < 400 else ""
        if 400 <= status < 500:
            said = complaint_of(status, body, self.redactor)
        else:  # Redacted before it is cut, so that no half of a secret remains.
            said = self.redactor.text(place) or words_of(body, self.redactor)
            said = shorten(printable(said), WORDS_LIMIT)
        line = f"{self._place()}: the API answered {status_line(status)}"
        return f"{line}: {said}" if said and not is_phrase(said, status) else line

    def _place(self) -> str:
        path = "/" + self.spec.url.split("/", 3)[3] if self.spec.url.count("/") > 2 else "/"
        return shorten(self.redactor.text(f"{self.spec.method} {path}"), WORDS_LIMIT)

    def _raw(self, received: Received) -> dict[str, Any]:
        # For the record: bounded and without secrets.
        headers = self.answer.headers
        names = list(headers)[:60]
        values = [MASK if name in NEVER_RECORDED else str(headers[name]) for name in names]
        masked = [self.redactor.text(text) for text in (*names, *values)]
        cut = [
            text if len(text) <= MAX_HEADER_LENGTH else shorten(text, MAX_HEADER_LENGTH) for text in masked
        ]
        response = HTTPResponseSpec(
            status_code=self.answer.status,
            headers=dict(zip(cut[: len(names)], cut[len(names) :], strict=True)),
            body=received.body,
            execution_time_ms=round(self.answer.seconds * 1000, 3),
        )
        return {"request": self.spec.model_dump(mode="json"), "response": response.model_dump(mode="json")}
