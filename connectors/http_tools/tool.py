"""A tool that is one HTTP call: its declaration (C1.4), path and source, and the records of a call."""

import operator
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote, unquote

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from connectors.definitions import MAX_SECONDS
from connectors.errors import Misconfigured, Rejected
from connectors.network.headers import TOKEN
from connectors.network.policy import normalise_base_url
from connectors.protocol import WorkflowRef
from connectors.settings import HeaderSecret

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
SAFE_METHODS = frozenset({"GET", "HEAD"})  # They change nothing, so they may be repeated
Scalar = str | int | float | bool
PARAMETER = re.compile(r"\{([^{}/]+)\}")
SEPARATORS = re.compile(r"[/\\]")
WITH_SLASH = "contains a slash"
ALLOWING_SLASHES = (
    ' If the API takes slashes here, its tool must say so: x-multi-segment in OpenAPI, or "slashes": true.'
)
Place = Literal["path", "query", "header", "cookie", "body"]
KeyPlace = Literal["header", "query", "cookie"]
BodyFormat = Literal["json", "form", "multipart", "raw"]
Separator = Literal[",", "|", " "]
IN = AliasChoices("in", "place")
HeaderName = Annotated[str, Field(pattern=rf"^{TOKEN.pattern}$", max_length=100)]
MAX_HEADERS = 20
PARTS = re.compile(r"(?P<origin>[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)", re.DOTALL)
# A source's settings by the fields of a tool's authentication; the others have the same names.
SETTINGS = {"type": "authentication", "where": "api_key_in", "name": "api_key_name", "key": "api_key"}
SETTINGS |= {
    name: f"oauth_{name}" for name in ("token_url", "client_id", "client_secret", "scope", "audience")
}
EXTRA_KEYS = ("extra_key_1", "extra_key_2", "extra_key_3")
"""A source's settings for keys besides its authentication; each has a place (`_in`) and a name (`_name`)."""
MAX_KEY_NAME = 100
MAX_PATH_LENGTH = 2_000


class HTTPRequestSpec(BaseModel):
    """A request before credentials are added."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    method: Method
    url: str = Field(min_length=1, max_length=16_000)
    """Absolute, with ids in place of the path's parameters and without a query."""
    headers: dict[str, str] = {}
    query_params: dict[str, Scalar | list[Scalar]] = {}
    """A list is written as one parameter for each of its items."""
    body: Any = None
    """A JSON value; not set: no body. With another `body_format` of its operation it is sent as a form, or as
    the content of a file."""


class HTTPResponseSpec(BaseModel):
    """A response as it came, with secrets masked."""

    model_config = ConfigDict(frozen=True)

    status_code: int
    headers: dict[str, str] = {}  # By name in lower case; values of one name are joined by ", "
    body: Any = None  # The JSON value, else the text, else a sentence that describes it
    execution_time_ms: float  # From the sending of the request to the last byte of the response


def parameters_in(path: str) -> list[str]:
    return PARAMETER.findall(path)


def ascii_path(path: str) -> str:
    """Letters of other scripts are percent-encoded as in a URI (RFC 3987); parameters keep their names."""
    parts = PARAMETER.split(path)  # Every second one is a parameter's name
    not_ascii = r"[^\x00-\x7f\ud800-\udfff]+"
    parts[::2] = [re.sub(not_ascii, lambda found: quote(found[0]), text) for text in parts[::2]]
    return "".join(f"{{{part}}}" if position % 2 else part for position, part in enumerate(parts))


def objections_to(path: str) -> list[str]:
    """The reasons why a tool cannot have this path, a sentence each."""
    literals = PARAMETER.sub("", path)
    # The value of a parameter is never empty: `{id}.{format}` is no segment of a dot alone.
    filled = PARAMETER.sub("x", path)
    found = []
    if "{" in literals or "}" in literals:
        found.append("A path parameter must be a name in braces, such as {order_id}.")
    elif not re.fullmatch(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*", literals):
        found.append("The path contains characters that must be percent-encoded.")
    if "}{" in path:
        found.append("Two path parameters must not follow each other directly.")
    names = parameters_in(path)
    found += [
        f"The path has {{{name}}} more than once." for name in dict.fromkeys(names) if names.count(name) > 1
    ]
    if "//" in path or _leads_astray(filled):
        found.append('The path must not contain an empty segment, "." or "..".')
    if len(path) > MAX_PATH_LENGTH:
        found.append(f"The path is longer than {MAX_PATH_LENGTH:,} characters.")
    return found


def fill_template(path: str, values: Mapping[str, str], *, with_slashes: frozenset[str] = frozenset()) -> str:
    """The path with percent-encoded values. Raises Rejected for a value that changes the path."""
    filled = path
    for name, given in values.items():
        # `{+name}` as in RFC 6570, and `{*name}`, which may also be empty
        has_segments = name.startswith(("+", "*"))
        # The path has the slash before the value already.
        value = given.removeprefix("/") if has_segments and f"/{{{name}}}" in path else given
        why = path_value_objection(value, slashes=has_segments or name in with_slashes)
        if why and (value or not name.startswith("*")):
            advice = ALLOWING_SLASHES if why == WITH_SLASH else ""
            argument = name.lstrip("+*")
            raise Rejected(
                f"The value of {argument} {why}, so it cannot be part of the path.{advice} Nothing was sent."
            )
        filled = filled.replace(f"{{{name}}}", quote(value, safe="/" if has_segments else ""))
    # Beside a dot of the path, a slash at the end of a value makes a segment of dots.
    why = "has an empty segment" if "//" in filled else path_value_objection(filled, slashes=True)
    if why:
        raise Rejected(f"With these values, the path {why}. Nothing was sent.")
    return filled


def path_value_objection(value: str, *, slashes: bool) -> str:
    """`contains a slash`; empty for a value that stays one segment however often it is decoded."""
    if not value:
        return "is empty"
    decoded = value
    for _ in range(5):  # Each server of a chain may decode a path again
        if decoded != decoded.encode("utf-8", "replace").decode():
            return "contains half of a surrogate pair"
        if any(ord(char) < 32 or ord(char) == 127 for char in decoded):
            return "contains a control character"
        if not slashes and SEPARATORS.search(decoded):
            return WITH_SLASH
        if _leads_astray(decoded):
            return 'contains "." or ".." as a segment'
        further = unquote(decoded)
        if further == decoded:
            return ""
        decoded = further
    return "is percent-encoded too many times"


def _leads_astray(path: str) -> bool:
    # To some servers, "a;b" is a segment with a parameter, which they drop before they resolve "..".
    steps = (step.partition(";")[0] for step in SEPARATORS.split(unquote(path)))
    return any(step in (".", "..") for step in steps)


@dataclass(frozen=True, slots=True)
class ValidationProblem:
    path: str  # JSON Pointer into the ToolConfig, or without a position into the submission; empty: the whole
    message: str  # A sentence
    position: int | None = None  # Of the tool among those submitted; None for what concerns no single one

    def __str__(self) -> str:
        place = "" if self.position is None else f"tool {self.position}"
        return ": ".join(filter(None, [f"{place} {self.path}".strip(), self.message]))


class InvalidTool(ValueError):
    def __init__(self, problems: Sequence[ValidationProblem]) -> None:
        super().__init__(" ".join(map(str, problems)))
        self.problems = list(problems)


class Declaration(BaseModel):
    # Without hide_input_in_errors a mistyped secret would be quoted by the error about it.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        # The docstrings below fields also describe them in the OpenAPI document.
        use_attribute_docstrings=True,
    )


class _Authentication(Declaration):
    @property
    def secret(self) -> str:
        """The name of the field with the secret; empty without one."""
        return next((name for name, value in self if isinstance(value, SecretStr)), "")


class NoAuthentication(_Authentication):
    type: Literal["none"] = "none"


class ApiKey(_Authentication):
    """A key in a header, in the query or in a cookie."""

    type: Literal["api_key"]
    where: KeyPlace = Field(
        default="header", validation_alias=AliasChoices("in", "where"), serialization_alias="in"
    )
    name: str = Field(min_length=1, max_length=100)
    key: HeaderSecret = SecretStr("")


class Bearer(_Authentication):
    """`Authorization: Bearer <token>`."""

    type: Literal["bearer"]
    token: HeaderSecret = SecretStr("")


class Basic(_Authentication):
    """`Authorization: Basic ...`."""

    type: Literal["basic"]
    username: str = Field(max_length=500)
    password: SecretStr = SecretStr("")


class OAuthClientCredentials(_Authentication):
    """A token that the product requests and renews."""

    type: Literal["oauth_client_credentials"]
    token_url: str
    client_id: str = Field(max_length=500)
    client_secret: SecretStr = SecretStr("")
    scope: str = ""
    audience: str = ""


Authentication = Annotated[
    NoAuthentication | ApiKey | Bearer | Basic | OAuthClientCredentials, Field(discriminator="type")
]


class ApiConfig(Declaration):
    """The endpoint of the request, and its authentication."""

    endpoint: str = Field(min_length=1, max_length=2_000)
    """`https://api.example.com/v1/orders/{order_id}`: absolute, with parameters only in the path."""
    method: Method
    authentication: Authentication = NoAuthentication()
    body_format: BodyFormat = Field(default="json", title="Body")
    """`raw`: one argument, whose name in the body is empty, is the whole body: a text, or a `data:` URI of
    any file."""
    idempotency_header: str = Field(default="", max_length=100)
    """If the API guarantees that requests with the same value in this header are executed once."""
    anonymous: bool = Field(default=False, exclude_if=operator.not_, title="Without credentials")
    """The request is sent without the source's credentials, for an endpoint that refuses them."""
    response_headers: list[HeaderName] = Field(default=[], max_length=MAX_HEADERS, exclude_if=operator.not_)
    """Headers of the response that agents are told besides the usual ones, such as ETag."""


class ArgumentPlace(Declaration):
    """Where an argument goes in the request."""

    place: Place = Field(validation_alias=IN, serialization_alias="in")
    name: str = Field(default="", max_length=500)
    """Of the parameter, header or cookie; in a body a JSON Pointer such as `/payment/amount`, empty for the
    whole body. Default: the argument's name."""
    explode: bool = True
    """A list in the query or in a form is one parameter per item; else one with separators."""
    separator: Separator = Field(default=",", exclude_if=",".__eq__)
    """With `explode` off: what stands between the items of a list."""
    brackets: bool = Field(default=False, exclude_if=operator.not_)
    """In the query: an object is one parameter per field, such as `created[gte]=5`, at any depth."""
    spread: bool = Field(default=False, exclude_if=operator.not_)
    """In the query: each entry of an object is a parameter of its own, such as `a=1&b=2`."""
    slashes: bool = False
    """In the path: the value may contain slashes, which are sent percent-encoded. Some servers still treat
    them as separators."""
    as_json: bool = Field(default=False, exclude_if=operator.not_)
    """Any value is written as JSON, also in a query, a header or a form field."""
    file: bool = Field(default=False, exclude_if=operator.not_)
    """In a multipart body: the field is a file, as a `data:` URI in base64 or as the text of a text file."""
    media_type: str = Field(default="", max_length=200, exclude_if=operator.not_)
    """The media type of a file, or of a raw body, that does not specify its own, or of another part."""
    media_types: list[str] = Field(default=[], exclude_if=operator.not_)
    """Of the header `Content-Type` of a JSON body: those that the argument can choose. Without it, the first
    that fits the body is sent."""
    lines: bool = Field(default=False, exclude_if=operator.not_)
    """The argument is a JSON body, and each item of a list is written on a line of its own."""


class Constant(Declaration):
    """A value that is sent with every call."""

    place: Literal["query", "header", "body"] = Field(validation_alias=IN, serialization_alias="in")
    name: str = Field(min_length=1, max_length=500)
    value: Scalar | list[Any] | dict[str, Any] | None


class FieldMappings(Declaration):
    """The places of the arguments in the request, and of the output in the response."""

    input: dict[str, ArgumentPlace] = Field(default={}, title="Argument mapping")
    """By argument, such as `{"customer": {"in": "header", "name": "X-Customer"}}`. An argument without an
    entry is placed in the path if the path contains its name, else in the query of GET, HEAD and DELETE, else
    in the body."""
    constants: list[Constant] = Field(default=[], title="Always sent")
    """Such as `[{"in": "query", "name": "format", "value": "full"}]`. Credentials belong to the source."""
    output: dict[str, str] = Field(default={}, title="Output mapping")
    """Field of the output -> JSON Pointer into the response's body, such as `{"total": "/amount/total"}`.
    Empty: the body is the output."""


class ToolConfig(Declaration):
    """One tool: its description, request, input and output."""

    name: str = Field(min_length=1, max_length=255)
    """The name that agents call, unless another tool already has it."""
    description: str = Field(min_length=1, max_length=20_000)
    """What it does, when to use it and what it returns. Agents choose tools by this."""
    title: str = Field(default="", max_length=255)
    """Shown to people. Empty: the name."""
    tags: list[str] = []
    api: ApiConfig
    input_schema: dict[str, Any] = {"type": "object", "properties": {}}
    """JSON Schema of the arguments, an object. Other arguments are refused."""
    output_schema: dict[str, Any] | None = None
    """JSON Schema of the result, if the API guarantees one."""
    output_is_promised: bool = Field(default=True, exclude_if=bool, title="Enforce the output schema")
    """Clients get the output schema, and a result that violates it is an error. If off, it is only
    documentation."""
    field_mappings: FieldMappings = FieldMappings()
    timeout_seconds: int | None = Field(default=None, ge=1, le=MAX_SECONDS, title="Timeout (s)")
    """Empty: the product's default."""
    cache_seconds: int | None = Field(default=None, ge=1, le=MAX_SECONDS, title="Cache results for (s)")
    """Only for tools that change nothing and answer all callers alike. Empty: results are not cached."""

    @field_validator("input_schema")
    @classmethod
    def _arguments_are_an_object(cls, schema: dict[str, Any]) -> dict[str, Any]:
        if schema.get("type", "object") != "object":
            raise ValueError('input_schema must be of the type "object"')
        return schema


@lru_cache(maxsize=5_000)
def split_endpoint(endpoint: str) -> tuple[str, str]:
    """The origin, as in a source's base URL, and the path, empty or beginning with a slash. Raises ValueError
    with a sentence."""
    found = PARTS.fullmatch(endpoint.strip())
    if found is None:
        raise ValueError(
            "The endpoint must be an absolute URL, such as https://api.example.com/orders/{order_id}."
        )
    if found["rest"]:
        raise ValueError(
            "The endpoint must not contain '?' or '#'; use arguments and constants for the query."
        )
    if "{" in found["origin"] or "}" in found["origin"]:
        raise ValueError("Parameters in braces can only be used in the path, not in the host.")
    return normalise_base_url(found["origin"]), ascii_path(found["path"])


def path_below(base_url: str, endpoint: str) -> str:
    """The path after the base URL. Raises ValueError with a sentence if the endpoint is elsewhere."""
    (origin, path), (own, base) = split_endpoint(endpoint), split_endpoint(normalise_base_url(base_url))
    if origin.lower() != own.lower() or not f"{path}/".startswith(f"{base}/"):
        raise ValueError(f"The endpoint is not below {base_url}, the base URL of the tool's source.")
    return path[len(base) :]


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """Address and credentials of a tool's API, in HttpConfig's fields."""

    base_url: str  # Its origin; tools of one origin and authentication share a source
    settings: dict[str, Any]  # All but the base URL and secrets
    secrets: dict[str, str] = field(repr=False)


def connection_of(tool: ToolConfig) -> Connection:
    """Raises InvalidTool for an unusable endpoint."""
    try:
        base_url, _ = split_endpoint(tool.api.endpoint)
    except ValueError as error:
        raise InvalidTool([ValidationProblem("/api/endpoint", str(error))]) from None
    said = {SETTINGS.get(name, name): value for name, value in tool.api.authentication}
    secrets = {name: value.get_secret_value() for name, value in said.items() if isinstance(value, SecretStr)}
    return Connection(
        base_url=base_url,
        settings={name: value for name, value in said.items() if name not in secrets},
        # Missing secrets are entered later.
        secrets={name: secret for name, secret in secrets.items() if secret},
    )


class HttpOperation(BaseModel):
    """`metadata` of an HTTP tool's workflow."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, serialize_by_alias=True)

    method: Method
    path: str
    """Below the source's base URL, `/orders/{order_id}`; empty: the base URL itself."""
    arguments: dict[str, ArgumentPlace] = {}
    """Every argument, with its place and name."""
    constants: list[Constant] = []
    body_format: BodyFormat = "json"
    output: dict[str, str] = {}
    idempotency_header: str = ""
    required: list[str] = []  # Required arguments that may be null, in places that cannot express it
    output_is_promised: bool = Field(default=True, exclude_if=bool)
    """Clients get the output schema, and results are validated against it."""
    anonymous: bool = Field(default=False, exclude_if=operator.not_)  # Sent without the source's credentials
    path_defaults: dict[str, Any] = {}  # Of arguments in the path that may be left out
    response_headers: list[str] = Field(default=[], exclude_if=operator.not_)  # In lower case
    notes: list[str] = Field(default=[], exclude_if=operator.not_)
    """What an import left out or read differently, in sentences for curators."""

    @classmethod
    def of(cls, workflow: WorkflowRef) -> Self:
        """Raises Misconfigured for another kind of workflow."""
        try:
            return cls.model_validate(workflow.metadata)
        except ValidationError:
            raise Misconfigured(f"{workflow.name} is not declared as an HTTP tool.") from None

    @cached_property
    def by_place(self) -> dict[Place, list[tuple[str, ArgumentPlace]]]:
        found: defaultdict[Place, list[tuple[str, ArgumentPlace]]] = defaultdict(list)
        for name, place in self.arguments.items():
            found[place.place].append((name, place))
        return found

    @cached_property
    def constant_values(self) -> dict[Place, dict[str, Any]]:
        found: defaultdict[Place, dict[str, Any]] = defaultdict(dict)
        for constant in self.constants:
            found[constant.place][constant.name] = constant.value
        return found

    @cached_property
    def comma_separated(self) -> frozenset[str]:
        """The query parameters whose commas stand between the items of a list."""
        places = (place for _, place in self.by_place["query"])
        return frozenset(
            place.name
            for place in places
            if not (place.explode or place.as_json or place.brackets) and place.separator == ","
        )

    @cached_property
    def is_safe(self) -> bool:
        return self.method in SAFE_METHODS
