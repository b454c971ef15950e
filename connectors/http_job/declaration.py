"""The YAML document that declares an engine, and its validation."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from connectors.definitions import MAX_SECONDS
from connectors.formats.yaml import (
    Limits,
    Path,
    Problem,
    UnusableText,
    problems_of,
    read_document,
)
from connectors.http_job.template import EACH, WHOLE, placeholders_in, unknown_placeholder
from connectors.network.headers import TOKEN, objection_to_name

LIMITS = Limits(bytes=200_000, depth=20, parts=5_000)
MAX_EXPRESSION_LENGTH = 2_000
METHODS = ("get", "post", "put", "patch", "delete")
SECRETS = ("username", "password", "token")
"""The settings of a source that a login may use."""
OF_LISTING = ("offset", "page", "limit", "cursor")
OF_WORKFLOW = ("id", "name")
RESERVED = {*SECRETS, *OF_LISTING, *OF_WORKFLOW, "run_id", "key", "arguments", "login_token"}


class _Cannot(ValueError):
    pass


@lru_cache(1_000)
def _compiled(text: str) -> Any:
    if len(text) > MAX_EXPRESSION_LENGTH:
        raise _Cannot(f"must have at most {MAX_EXPRESSION_LENGTH:,} characters")
    try:
        return jmespath.compile(text)
    except (JMESPathError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise _Cannot(f"is not a valid JMESPath expression: {reason.rstrip(':.')}") from None


def _is_expression(text: str) -> str:
    _compiled(text)
    return text


def find(expression: str, value: Any) -> Any:
    """Returns what the JMESPath expression finds; None also if one of its functions refuses the value."""
    try:
        return _compiled(expression).search(value)
    except (JMESPathError, RecursionError, ValueError, TypeError, ArithmeticError):
        return None


def _is_path(path: str) -> str:
    if not path.startswith("/") or path.startswith("//"):
        raise ValueError("must be a path relative to the source's address that begins with a single '/'")
    if not path.isascii() or not path.isprintable() or " " in path or "#" in path or "\\" in path:
        raise ValueError(
            "must not contain spaces, '#', '\\' or characters outside ASCII; percent-encode them"
        )
    if any(step in (".", "..") for step in path.partition("?")[0].split("/")):
        raise ValueError("must not contain the segments '.' or '..'")
    return path


def _are_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if name.lower() != "authorization" and (why := objection_to_name(name, constant=True)):
            raise ValueError(f"the header {name} {why}")
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"the value of {name} has characters that HTTP does not allow in a header")
    return headers


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict | int) and not isinstance(value, bool) else value


Expression = Annotated[str, Field(min_length=1), AfterValidator(_is_expression)]
"""JMESPath."""
Text = Annotated[str, Field(min_length=1, max_length=20_000)]
RequestPath = Annotated[str, Field(max_length=2_000), AfterValidator(_is_path)]
Headers = Annotated[dict[str, str], AfterValidator(_are_headers)]
Keep = dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")], Expression]
Status = Annotated[int, Field(ge=400, le=499)]
Statuses = Annotated[list[Status], BeforeValidator(_as_list, json_schema_input_type=Status | list[Status])]
State = Literal["running", "paused", "completed", "failed", "cancelled"]


class Block(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class Request(Block):
    """One HTTP request below the source's address; each string may have placeholders in braces."""

    get: RequestPath | None = None
    post: RequestPath | None = None
    put: RequestPath | None = None
    patch: RequestPath | None = None
    delete: RequestPath | None = None
    query: dict[str, Any] = {}
    """Query parameters; empty ones are left out."""
    headers: Headers = {}
    body: Any = Field(default=None, alias="json")
    """The body, as JSON. A string that consists of one placeholder takes the type of its value."""
    form: dict[str, Any] | Literal["{arguments}"] | None = None
    """The body, as a form; an object is sent as its JSON."""
    multipart: dict[str, Any] | None = None
    """The body, as a form of the type multipart/form-data; what is not a string is sent as its JSON."""
    graphql: Text | None = None
    """A GraphQL document, sent unchanged; only its variables have placeholders."""
    variables: dict[str, Any] = {}
    not_found: Expression | None = None
    """True for a successful response that reports an unknown workflow or run."""
    refused: Expression | None = None
    """The message of a successful response that reports a refusal."""
    read: Literal["json", "lines"] = "json"
    """What expressions are applied to: the response's JSON, or the list of its lines of text."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        named = [method for method in METHODS if getattr(self, method) is not None]
        if len(named) != 1:
            raise ValueError(f"must have exactly one of {', '.join(METHODS)}, with its path")
        given = (self.body, self.form, self.multipart, self.graphql)
        bodies = [body for body in given if body is not None]
        if len(bodies) > 1:
            raise ValueError("must have only one of json, form, multipart and graphql")
        if bodies and self.get is not None:
            raise ValueError("a get request cannot have a body; use query or post")
        if self.variables and self.graphql is None:
            raise ValueError("variables require a graphql document")
        return self

    @property
    def method(self) -> str:
        return next(method.upper() for method in METHODS if getattr(self, method) is not None)

    @property
    def path(self) -> str:
        path: str = getattr(self, self.method.lower())
        return path

    @property
    def templates(self) -> Iterator[tuple[str, Any]]:
        """The key of each part that may have placeholders, and the part."""
        yield self.method.lower(), self.path
        yield from (("query", self.query), ("headers", self.headers), ("json", self.body))
        yield from (("form", self.form), ("multipart", self.multipart), ("variables", self.variables))


class LoginRequest(Request):
    """A login request; its JSON response contains a token."""

    token: Expression
    header: str = "Authorization"
    value: str = "Bearer {login_token}"
    again_on: Statuses = [401]
    """Statuses after which the login and the request are repeated once."""
    optional: bool = False
    """Skipped if the source has none of its secrets, for engines that can run without a login."""

    @model_validator(mode="after")
    def _has_a_header(self) -> Self:
        if not TOKEN.fullmatch(self.header):
            raise ValueError("header: this is not a valid header name")
        if set(placeholders_in(self.value)) != {"login_token"}:
            raise ValueError("value: must have the placeholder {login_token} and no other")
        return self


class Login(Block):
    """How requests authenticate. Secrets are settings of the source, never part of this document."""

    headers: Headers = {}
    """Headers with {token}, {username} or {password}; a header without its secret is left out."""
    basic: bool = False
    """HTTP basic authentication with the source's user name and password."""
    oauth: bool = False
    """OAuth client credentials, from the source's settings."""
    request: LoginRequest | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum((bool(self.headers), self.basic, self.oauth, self.request is not None)) > 1:
            raise ValueError("must have only one of headers, basic, oauth and request")
        for name, value in self.headers.items():
            if not set(placeholders_in(value)) & set(SECRETS):
                raise ValueError(
                    f"headers.{name}: must contain {{token}}, {{username}} or {{password}}; enter the secret "
                    "in the source's settings"
                )
        return self

    @property
    def needs(self) -> set[str]:
        """The source's settings that the login uses."""
        if self.basic:
            return {"username", "password"}
        if self.oauth:
            return {"oauth_token_url", "oauth_client_id", "oauth_client_secret"}
        used = set(placeholders_in(self.headers))
        for _, template in self.request.templates if self.request else ():
            used |= set(placeholders_in(template))
        return used & set(SECRETS)


class Pages(Block):
    """How a listing continues. The request has {offset}, {page} or {cursor}, and {limit} for the size."""

    by: Literal["offset", "page", "cursor", "link"]
    size: Annotated[int, Field(ge=1, le=10_000)] = 100
    total: Expression | None = None
    """The total number of items; without it, a page that is not full is the last. A listing that ends with
    fewer items is refused."""
    next: Expression | None = None
    """The next page's cursor, or its link, which must be at the source's address."""
    first: Annotated[int, Field(ge=0, le=1)] = 1
    """The number of the first page."""

    @model_validator(mode="after")
    def _can_go_on(self) -> Self:
        if (self.next is None) == (self.by in ("cursor", "link")):
            raise ValueError("next can only be used with cursor or link, and is required there")
        return self


class Inputs(Block):
    """Inputs that the engine describes one by one; they are combined into the input schema."""

    each: Expression
    """An object whose keys are the names, or a list."""
    name: Expression | None = None
    """The name of an item, if `each` finds a list."""
    numbered: Annotated[str, Field(min_length=1, max_length=50)] | None = None
    """Instead of name: what the names begin with, before the number of the item, from 0."""
    schema_: Expression | None = Field(default=None, alias="schema")
    """A JSON Schema of the value."""
    type: Expression | None = None
    types: dict[str, Literal["string", "number", "integer", "boolean", "array", "object"]] = {}
    """The engine's names of types; other names allow any value."""
    description: Expression | None = None
    default: Expression | None = None
    choices: Expression | None = None
    required: Expression | None = None
    """True for a required input; without it, all inputs are optional."""


class Described(Block):
    """What a response says about a workflow."""

    title: Expression | None = None
    description: Expression | None = None
    version: Expression | None = None
    category: Expression | None = None
    tags: Expression | None = None
    timeout_seconds: Annotated[int, Field(ge=1, le=MAX_SECONDS)] | Expression | None = None
    """The engine's time limit for a run; without it, the product's default applies."""
    input_schema: str | dict[str, Any] | None = None
    """An expression that finds a JSON Schema, or the JSON Schema of all workflows."""
    output_schema: Expression | None = None
    inputs: Inputs | None = None
    """With an expression in input_schema: for workflows for which it finds nothing."""
    keep: Keep = {}
    """Values of a workflow for placeholders of later requests."""

    @model_validator(mode="after")
    def _has_one_schema(self) -> Self:
        if isinstance(self.input_schema, dict) and self.inputs is not None:
            raise ValueError("must have only one of inputs and a common input_schema")
        if isinstance(self.input_schema, str):
            _is_expression(self.input_schema)
        return self


class Detail(Request, Described):
    """A second request for each item of the listing."""


class List(Request, Described):
    """The listing of workflows."""

    items: Expression
    only: Expression | None = None
    """True for the items that are workflows; others are left out, unless they have no id."""
    id: Expression
    name: Expression | None = None
    """Default: the id."""
    newest: Expression | None = None
    """A number, for engines that list all versions of a workflow: of the items with one id, the one with the
    greatest number is used."""
    pages: Pages | None = None
    detail: Detail | None = None

    @model_validator(mode="after")
    def _is_compared_whole(self) -> Self:
        if self.newest is not None and self.pages is not None:
            raise ValueError(
                "newest cannot be combined with pages, because the versions of a workflow may "
                "be on several pages"
            )
        return self


class AlreadyStarted(Block):
    """How the engine reports that the key already has a run."""

    status: Statuses
    saying: str = ""
    """A part of the engine's message, if the status can have other meanings."""


class Start(Request):
    run_id: Expression | None = None
    """In the response."""
    location: Annotated[str, Field(pattern=r"^/[^{}?#]*\{run_id\}[^{}?#]*$", max_length=500)] | None = None
    """Instead of run_id: how the path in the Location header ends, such as /queue/item/{run_id}/."""
    own_run_id: Text | None = None
    """The run id, if the request sets it, such as "{key}"."""
    already_started: Annotated[
        AlreadyStarted | None,
        BeforeValidator(
            lambda value: {"status": value} if isinstance(value, int | list) else value,
            json_schema_input_type=Status | list[Status] | AlreadyStarted | None,
        ),
    ] = None
    one_run_per_key: bool = False
    """The engine guarantees that repeated starts with one {key} return the same run."""

    @model_validator(mode="after")
    def _knows_the_run(self) -> Self:
        if (self.run_id is None) == (self.location is None):
            raise ValueError("must have one of run_id and location")
        if self.already_started and self.location is not None:
            raise ValueError("already_started requires run_id and cannot be used with location")
        if self.already_started and self.own_run_id is None:
            raise ValueError("already_started requires own_run_id, because that response does not name a run")
        return self


class One(Block):
    """The run, in a list of runs."""

    of: Expression
    """A list."""
    where: Expression
    """A value of each of its items."""
    equals: Text
    """The expected value, such as "{run_id}"."""


class Find(Request):
    """Looks up the run that was started with a key."""

    runs: Expression | None = None
    """A list of runs; without it, the response is the run."""
    run_id: Expression
    key: Expression | None = None
    """The key that a run was started with; required with runs."""
    workflow: Expression | None = None
    """The id of a run's workflow."""
    one: One | None = None
    """For engines that cannot look up a key: the run among the latest runs. Older runs are not found."""

    @model_validator(mode="after")
    def _checks_the_key(self) -> Self:
        if self.runs is not None and self.key is None:
            raise ValueError("runs requires key: an engine that ignores the condition would list other runs")
        if self.one is not None and (self.runs is not None or self.key is not None):
            raise ValueError("one cannot be combined with runs and key")
        return self


class HowFar(Block):
    """What a response says about the progress of a run."""

    progress: Expression | None = None
    """Percent, or a string such as 2/3."""
    done: Expression | None = None
    """The number of finished parts of the run."""
    total: Expression | None = None
    """The number of all parts."""
    message: Expression | None = None

    @model_validator(mode="after")
    def _counts_in_pairs(self) -> Self:
        if (self.done is None) != (self.total is None):
            raise ValueError("done and total must be set together")
        return self


class Progress(Request, HowFar):
    """A second request of each poll while the run is running."""


class Seen(HowFar):
    """What a response says about a run."""

    state: Expression
    output: Expression | None = None
    error: Expression | None = None
    created_at: Expression | None = None
    started_at: Expression | None = None
    updated_at: Expression | None = None
    finished_at: Expression | None = None
    keep: Keep = {}
    """Values for placeholders of the requests for result, failure and logs."""


class Otherwise(Request, Seen):
    """Finds a run that is not in the list yet."""


class RunStatus(Request, Seen):
    states: Annotated[dict[str, State], Field(min_length=1)]
    one: One | None = None
    """For engines that list runs: the other expressions are applied to this run."""
    otherwise: Otherwise | None = None
    """Sent if the list does not contain the run; without it, the run is unknown."""

    @model_validator(mode="after")
    def _is_otherwise_needed(self) -> Self:
        if self.otherwise is not None and self.one is None:
            raise ValueError("otherwise requires one")
        return self


class Step(Request):
    """One of several requests; the output of the last one is used."""

    output: Expression | None = None
    keep: Keep = {}
    """Values for placeholders of the following requests; a null value ends the steps."""


Steps = Annotated[
    list[Step],
    Field(min_length=1, max_length=5),
    BeforeValidator(_as_list, json_schema_input_type=Step | list[Step]),
]


class Cancel(Request):
    unless_ended: bool = False
    """Check the status first, for engines that would change a run that has ended. The values that the status
    keeps become placeholders."""
    not_yet: Expression | None = None
    """True for a temporary refusal, after which the request is repeated."""
    redirect_is_success: bool = False
    """A redirect, which is not followed, means success."""
    otherwise: Request | None = None
    """Sent instead if a value that this request needs is null."""


class Terminate(Cancel):
    after_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0


class Hold(Cancel):
    """Pauses or resumes a running run; not sent to one that is paused, or running, already."""

    unless_ended: bool = True


class Retry(Request):
    """Runs the failed steps of a failed run again, and keeps what the others have done. The status is checked
    first; {run_id} is the failed run, and {key} the key of the retry."""

    run_id: Expression | None = None
    """In the response: the new run. Without it, the run goes on under its own id."""
    attempt: Expression | None = None
    """Of a run that goes on, in its status: a value that is another one after each retry. Default: that of
    finished_at. The retry has happened once the status shows another one, or a run that has not failed."""
    one_run_per_key: bool = False
    """The engine guarantees that repeated retries with one {key} make one."""
    find: Find | None = None
    """Looks up the retry that was made with a key, which must not find those of other keys."""


class Answer(Request):
    """Sends a person's answer, {arguments}, of which {inputs} is what `inputs` describes."""

    keep: Keep = {}
    """Values of the answer, for placeholders."""
    otherwise: Request | None = None
    """Sent instead if a value that this request needs is null."""
    gone: Statuses = []
    """Statuses, besides 404, that say that the question is not asked any more; others refuse the answer."""


class Questions(Request):
    """What a running run waits for people to answer."""

    when: Expression | None = None
    """True for a run that may ask, in the response to progress, or to status if progress is not declared; the
    request is sent only then."""
    items: Expression
    """The open questions."""
    id: Expression
    """Another id is another question; a task that asks again needs another one."""
    message: Expression | None = None
    schema_: Expression | None = Field(default=None, alias="schema")
    """The JSON Schema of the answer, an object's; without it and inputs, consent is enough."""
    inputs: Inputs | None = None
    """Further properties of the answer."""
    url: Expression | None = None
    """Where the engine itself asks people."""
    until: Expression | None = None
    keep: Keep = {}
    """Values of a question for placeholders of its answer."""
    answer: Answer


SIGNATURES: dict[str, dict[str, Any]] = {
    "github": {"header": "X-Hub-Signature-256", "prefix": "sha256="},
    "standard": {
        "header": "webhook-signature",
        "prefix": "v1,",
        "encoding": "base64",
        "signs": "{id}.{timestamp}.{body}",
        "id": "webhook-id",
        "timestamp": "webhook-timestamp",
    },
    "stripe": {
        "header": "Stripe-Signature",
        "prefix": "v1=",
        "signs": "{timestamp}.{body}",
        "timestamp_prefix": "t=",
    },
}
"""Published schemes, which can be selected by name."""
SignatureName = Literal["github", "standard", "stripe"]


def _named_signature(value: Any) -> Any:
    if isinstance(value, str) and value not in SIGNATURES:
        raise ValueError(f"must be one of {', '.join(SIGNATURES)}, or a mapping with a header")
    return SIGNATURES[value] if isinstance(value, str) else value


def _is_header_name(name: str) -> str:
    if not TOKEN.fullmatch(name):
        raise ValueError("is not a valid header name")
    return name


HeaderName = Annotated[str, Field(max_length=100), AfterValidator(_is_header_name)]


class Signature(Block):
    """An HMAC-SHA256 with the source's webhook secret as its key."""

    header: HeaderName
    """The header of the signature; several are separated by spaces, or with timestamp_prefix by commas."""
    prefix: Annotated[str, Field(max_length=50)] = ""
    """The prefix of a signature. Parts of the header without it are ignored."""
    encoding: Literal["hex", "base64"] = "hex"
    signs: Annotated[str, Field(max_length=200)] = "{body}"
    """The signed content: {body}, the raw bytes, with {timestamp} and {id}."""
    id: HeaderName | None = None
    """The header of {id}."""
    timestamp: HeaderName | None = None
    """The header of {timestamp}, in seconds since 1970."""
    timestamp_prefix: Annotated[str, Field(min_length=1, max_length=50)] | None = None
    """Instead of timestamp: the prefix of {timestamp} in the signature's header."""
    tolerance_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """How far the timestamp may be from the product's clock."""

    @model_validator(mode="after")
    def _signs_what_it_names(self) -> Self:
        given = {"body": True, "id": self.id, "timestamp": self.timestamp or self.timestamp_prefix}
        signed = set(placeholders_in(self.signs))
        if self.timestamp and self.timestamp_prefix:
            raise ValueError("must have only one of timestamp and timestamp_prefix")
        if unknown := sorted(signed - given.keys()):
            raise ValueError(
                f"signs: unknown placeholder {{{unknown[0]}}}; known placeholders: {{body}}, {{id}}, "
                f"{{timestamp}}"
            )
        for name, header in given.items():
            if header and name not in signed:
                raise ValueError(f"signs: must contain {{{name}}}; unsigned data proves nothing")
            if name in signed and not header:
                raise ValueError(f"{name}: required, because {{{name}}} is signed")
        return self


class SharedSecret(Block):
    """The source's webhook secret itself, for engines that cannot sign."""

    header: HeaderName
    prefix: Annotated[str, Field(max_length=50)] = ""
    """The text before the secret, such as "Bearer "."""


class Webhook(Block):
    """How the engine reports the end of a run. A report only triggers a poll, which shows the run's state."""

    signature: (
        Annotated[
            Signature, BeforeValidator(_named_signature, json_schema_input_type=SignatureName | Signature)
        ]
        | None
    ) = None
    secret: SharedSecret | None = None
    form: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """The field with the JSON, if the body is a form."""
    ended: Expression | None = None
    """True for a report of an end; others are ignored. Without it, every delivery is one."""
    run_id: Expression
    workflow_id: Expression | None = None
    """For engines with run ids that are unique only within a workflow."""

    @model_validator(mode="after")
    def _is_checked(self) -> Self:
        if (self.signature is None) == (self.secret is None):
            raise ValueError("must have one of signature and secret")
        return self


class Declaration(Block):
    """An engine with a job API."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    about: Annotated[str, Field(max_length=500)] = ""
    address: Annotated[str, Field(max_length=500)] = ""
    """An example of the engine's address."""
    values: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")], str] = {}
    """Values that a source can set, with their defaults; placeholders of every request."""
    login: Login = Login()
    headers: Headers = {}
    """Sent with every request."""
    check: Request | None = None
    """A cheap request that proves address and login; without it, the first page of the list."""
    list: List
    start: Start
    find: Find | None = None
    status: RunStatus
    progress: Progress | None = None
    """The progress of a run, if its status does not contain it."""
    result: Steps = Field(default=[], min_length=0)
    """Requests for the output of a completed run: that of the last request which finds one, otherwise that of
    the status. A response of a text type, such as text/csv, is its text."""
    failure: Steps = Field(default=[], min_length=0)
    """Requests for the reason of a failed run."""
    logs: Steps = Field(default=[], min_length=0)
    """Requests for the last log lines of an ended run, which are stored."""
    cancel: Cancel | None = None
    terminate: Terminate | None = None
    """Sent after_seconds after a cancellation, if the run has not ended."""
    retry: Retry | None = None
    pause: Hold | None = None
    resume: Hold | None = None
    questions: Questions | None = None
    webhook: Webhook | None = None

    @property
    def requests(self) -> Iterator[tuple[Path, Request, set[str]]]:
        """Every request with its place in the document and the names that its placeholders may have."""
        kept = {*self.list.keep, *(self.list.detail.keep if self.list.detail else ())}
        workflow = {*self.values, *OF_WORKFLOW, *kept}
        run = workflow | {"run_id", "key"}
        single: list[tuple[Path, Request | None, set[str]]] = [
            (("login", "request"), self.login.request, {*self.values, *SECRETS}),
            (("check",), self.check, {*self.values}),
            (("list",), self.list, {*self.values, *OF_LISTING}),
            (("list", "detail"), self.list.detail, {*self.values, *OF_WORKFLOW, *self.list.keep}),
            (("start",), self.start, workflow | {"key", "arguments"}),
            (("find",), self.find, workflow | {"key", "arguments"}),
            (("status",), self.status, run),
            (("status", "otherwise"), self.status.otherwise, run),
            (("progress",), self.progress, run | {*self.status.keep}),
            (("retry",), self.retry, run | {*self.status.keep}),
            (("retry", "find"), self.retry and self.retry.find, run),
        ]
        for name in ("cancel", "terminate", "pause", "resume"):
            if (command := getattr(self, name)) is not None:
                single += [((name,), command, run | self._known_to(command))]
                single += [((name, "otherwise"), command.otherwise, run | self._known_to(command))]
        yield from ((place, request, known) for place, request, known in single if request is not None)
        if (questions := self.questions) is not None:
            known = run | {*self.status.keep}
            yield ("questions",), questions, known
            answer = questions.answer
            known = known | {*questions.keep, *answer.keep, "arguments", "inputs"}
            yield ("questions", "answer"), answer, known
            if answer.otherwise is not None:
                yield ("questions", "answer", "otherwise"), answer.otherwise, known
        for reading in ("result", "failure", "logs"):
            known = run | {*self.status.keep}
            for position, step in enumerate(getattr(self, reading)):
                yield (reading, position), step, known
                known = known | {*step.keep}

    def _known_to(self, command: Cancel) -> set[str]:
        return {*self.status.keep} if command.unless_ended else set()


def read_declaration(text: str) -> Declaration:
    """Raises UnusableText with each mistake's line and key."""
    document = read_document(text.encode("utf-8", "surrogatepass"), private=("login",), limits=LIMITS)
    problems = [*document.problems]
    if not isinstance(document.value, dict):
        raise UnusableText([*problems, Problem(1, "", "must be a mapping of keys and values")])
    try:
        declared = Declaration.model_validate(document.value)
    except ValidationError as error:
        raise UnusableText([*problems, *problems_of(error, document, Declaration)]) from None
    problems += _placeholder_problems(declared, document.problem)
    if problems:
        raise UnusableText(problems)
    return declared


Noting = Callable[[Path, str], Problem]


def _placeholder_problems(declared: Declaration, problem: Noting) -> Iterator[Problem]:
    yield from _name_problems(declared, problem)
    for place, request, known in declared.requests:
        for key, objection in _template_problems(request, known):
            yield problem((*place, key), objection)
    if unknown := unknown_placeholder(declared.headers, {*declared.values}):
        yield problem(("headers",), _advice(unknown, {*declared.values}))
    yield from _run_problems(declared, problem)
    yield from _pause_problems(declared, problem)
    if (pages := declared.list.pages) is not None and pages.by != "link":
        used = {name for _, template in declared.list.templates for name in placeholders_in(template)}
        if pages.by not in used:
            yield problem(("list", "pages"), f"the request must contain {{{pages.by}}}")


def _run_problems(declared: Declaration, problem: Noting) -> Iterator[Problem]:
    """Problems of the parts that identify a run."""
    own, start, retry = declared.start.own_run_id, declared.start, declared.retry
    if unknown := unknown_placeholder(own, {"key", "id", *declared.values}):
        yield problem(("start", "own_run_id"), _advice(unknown, {"key", "id"}))
    promises: list[tuple[str, Request, Any]] = [("start", start, own or start.one_run_per_key)]
    if retry is not None:
        promises.append(("retry", retry, retry.one_run_per_key or retry.find))
    for name, request, promise in promises:
        keyed = {used for _, template in request.templates for used in placeholders_in(template)}
        if promise and "key" not in keyed:
            yield problem((name,), "must send {key} if it declares a guarantee for it")
    yield from _one_problems(("status",), declared.status, {"run_id", "key"}, problem)
    yield from _one_problems(("find",), declared.find, {"key"}, problem)
    yield from _one_problems(("retry", "find"), retry.find if retry else None, {"key"}, problem)


def _one_problems(
    place: Path, request: RunStatus | Find | None, known: set[str], problem: Noting
) -> Iterator[Problem]:
    if request is None or request.one is None:
        return
    if unknown := unknown_placeholder(request.one.equals, known):
        yield problem((*place, "one", "equals"), _advice(unknown, known))
    elif isinstance(request, Find) and "key" not in placeholders_in(request.one.equals):
        yield problem((*place, "one", "equals"), "must contain {key}")


def _pause_problems(declared: Declaration, problem: Noting) -> Iterator[Problem]:
    if (declared.pause is None) != (declared.resume is None):
        place = "pause" if declared.pause else "resume"
        yield problem((place,), "pause and resume must be declared together")
    if declared.pause and "paused" not in declared.status.states.values():
        yield problem(("status", "states"), "must map a state to paused, because pause is declared")


def _template_problems(request: Request, known: set[str]) -> Iterator[tuple[str, str]]:
    for key, template in request.templates:
        if unknown := unknown_placeholder(template, known):
            yield key, _advice(unknown, known)
        elif stray := {*EACH}.intersection(placeholders_in(template, in_lists=False, in_members=False)):
            yield key, f"{{{min(stray)}}} can only be an item of a list, or a key"
    if {"{", "}"} & {*WHOLE.sub("", request.path)}:
        yield request.method.lower(), "has a brace that is not part of a placeholder"


def _name_problems(declared: Declaration, problem: Noting) -> Iterator[Problem]:
    """Reserved and duplicate names."""
    listing, questions = declared.list, declared.questions
    named: list[tuple[Path, Mapping[str, str]]] = [
        (("values",), declared.values),
        (("list", "keep"), listing.keep),
        (("list", "detail", "keep"), listing.detail.keep if listing.detail else {}),
        (("status", "keep"), declared.status.keep),
        (("questions", "keep"), questions.keep if questions else {}),
        (("questions", "answer", "keep"), questions.answer.keep if questions else {}),
        *(
            ((reading, position, "keep"), step.keep)
            for reading in ("result", "failure", "logs")
            for position, step in enumerate(getattr(declared, reading))
        ),
    ]
    for place, names in named:
        for name in names:
            is_taken = name in RESERVED or (name == "inputs" and place[0] == "questions")
            if is_taken or (name in declared.values and place != ("values",)):
                yield problem((*place, name), "is a reserved name; choose another")


def _advice(unknown: str, known: set[str]) -> str:
    if unknown in SECRETS:
        return f"{{{unknown}}} can only be used in the login"
    listed = ", ".join(f"{{{name}}}" for name in sorted(known))
    return f"unknown placeholder {{{unknown}}}; known placeholders: {listed or 'none'}"


def json_schema() -> dict[str, Any]:
    """Describes the format for editors that validate YAML as it is typed. It includes the short forms: a
    single step or status instead of a list, and the name of a published signature."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Declaration.model_json_schema()}
