"""A tool that is one HTTP call: its declaration (C1.4), its source, and the call that the connector makes."""

import operator
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from connectors.errors import Misconfigured
from connectors.formats.json_schema import pointer_of
from connectors.http_tools.path_template import objections_to
from connectors.http_tools.specs import SAFE_METHODS, Method, Scalar
from connectors.network.policy import normalise_base_url
from connectors.protocol import WorkflowRef
from connectors.settings import HeaderSecret


@dataclass(frozen=True, slots=True)
class ToolProblem:
    path: str
    """JSON Pointer into the ToolConfig; empty: the whole."""
    message: str
    """A sentence."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidTool(ValueError):
    """All that is wrong with it, at once."""

    def __init__(self, problems: Sequence[ToolProblem]) -> None:
        super().__init__(" ".join(map(str, problems)))
        self.problems = list(problems)


Place = Literal["path", "query", "header", "body"]
BodyFormat = Literal["json", "form", "multipart"]
IN = AliasChoices("in", "place")


class _Declaration(BaseModel):
    # Without hide_input_in_errors a mistyped secret would be quoted by the error about it.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        # What stands below a field describes it in the API's document, too.
        use_attribute_docstrings=True,
    )


class NoAuthentication(_Declaration):
    type: Literal["none"] = "none"


class ApiKey(_Declaration):
    """A key in a header or in the query."""

    type: Literal["api_key"]
    where: Literal["header", "query"] = Field(
        default="header", validation_alias=AliasChoices("in", "where"), serialization_alias="in"
    )
    name: str = Field(min_length=1, max_length=100)
    key: HeaderSecret = SecretStr("")


class Bearer(_Declaration):
    """`Authorization: Bearer <token>`."""

    type: Literal["bearer"]
    token: HeaderSecret = SecretStr("")


class Basic(_Declaration):
    """`Authorization: Basic ...`."""

    type: Literal["basic"]
    username: str = Field(max_length=500)
    password: SecretStr = SecretStr("")


class OAuthClientCredentials(_Declaration):
    """A token that the product gets by itself, and renews."""

    type: Literal["oauth_client_credentials"]
    token_url: str
    client_id: str = Field(max_length=500)
    client_secret: SecretStr = SecretStr("")
    scope: str = ""
    audience: str = ""


Authentication = Annotated[
    NoAuthentication | ApiKey | Bearer | Basic | OAuthClientCredentials, Field(discriminator="type")
]


class ApiConfig(_Declaration):
    """Where the call goes, and who we are there."""

    endpoint: str = Field(min_length=1, max_length=2_000)
    """`https://api.example.com/v1/orders/{order_id}`: absolute, with parameters only in the path."""
    method: Method
    authentication: Authentication = NoAuthentication()
    body_format: BodyFormat = "json"
    idempotency_header: str = Field(default="", max_length=100)
    """Where the API promises that requests with the same value in this header count once."""
    anonymous: bool = Field(default=False, exclude_if=operator.not_)
    """The call is made without the source's credentials, for an API that refuses them there."""


class ArgumentPlace(_Declaration):
    """Where an argument goes in the request."""

    place: Place = Field(validation_alias=IN, serialization_alias="in")
    name: str = Field(default="", max_length=500)
    """The parameter's or header's name; in a body a JSON Pointer such as `/payment/amount`, empty for the
    whole body. Left out: the argument's own name."""
    explode: bool = True
    """A list in the query is one parameter per item; else one with commas."""
    slashes: bool = False
    """In the path: the value may have slashes, which are sent percent-encoded. Some servers take those for
    steps of the path all the same."""
    as_json: bool = Field(default=False, exclude_if=operator.not_)
    """The value, whatever it is, is written as JSON, also in a query, a header or a field of a form."""
    file: bool = Field(default=False, exclude_if=operator.not_)
    """In a multipart body: the value is a file, as a `data:` URI in base64 or, of a text file, its text."""
    media_type: str = Field(default="", max_length=200, exclude_if=operator.not_)
    """Of a file that does not say itself what it is."""


class Constant(_Declaration):
    """What is sent with every call, whatever the arguments."""

    place: Literal["query", "header", "body"] = Field(validation_alias=IN, serialization_alias="in")
    name: str = Field(min_length=1, max_length=500)
    value: Scalar | list[Any] | dict[str, Any] | None


class FieldMappings(_Declaration):
    """How arguments become a request, and the response an output."""

    input: dict[str, ArgumentPlace] = {}
    """By argument. One that is not named goes where the path names it, else into the query of GET, HEAD and
    DELETE, else into the body."""
    constants: list[Constant] = []
    output: dict[str, str] = {}
    """Field of the output -> JSON Pointer into the response's body. Empty: the body is the output."""


class ToolConfig(_Declaration):
    """One tool: what it is for, the call that it is, and what goes in and comes out."""

    name: str = Field(min_length=1, max_length=255)
    description: str = Field(min_length=1, max_length=20_000)
    title: str = Field(default="", max_length=255)
    tags: list[str] = []
    api: ApiConfig
    input_schema: dict[str, Any] = {"type": "object", "properties": {}}
    """JSON Schema of the arguments, an object."""
    output_schema: dict[str, Any] | None = None
    output_is_promised: bool = Field(default=True, exclude_if=bool)
    """Clients get the output schema, and a result that breaks it is an error. Off: it only describes."""
    field_mappings: FieldMappings = FieldMappings()
    timeout_seconds: int | None = Field(default=None, ge=1, le=2_592_000)
    cache_seconds: int | None = Field(default=None, ge=1, le=2_592_000)

    @model_validator(mode="after")
    def _arguments_are_an_object(self) -> Self:
        if self.input_schema.get("type", "object") != "object":
            raise ValueError('input_schema must be of the type "object"')
        return self


PARTS = re.compile(r"(?P<origin>[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Endpoint:
    origin: str
    """`https://api.example.com`, as a source keeps its base URL."""
    path: str
    """With its parameters in braces; empty or from the first slash on."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Raises ValueError with a sentence."""
        found = PARTS.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                "The endpoint is a whole URL, such as https://api.example.com/orders/{order_id}."
            )
        if found["rest"]:
            raise ValueError(
                "The endpoint ends before any '?' or '#'; arguments and constants go into the query."
            )
        if "{" in found["origin"] or "}" in found["origin"]:
            raise ValueError("Parameters in braces stand in the path only, never in the host.")
        return cls(normalise_base_url(found["origin"]), found["path"])

    def path_below(self, base_url: str) -> str:
        """What follows the base URL. Raises ValueError with a sentence where it does not begin with that."""
        base = self.of(normalise_base_url(base_url))
        if self.origin.lower() != base.origin.lower() or not (self.path + "/").startswith(base.path + "/"):
            raise ValueError(f"The endpoint is not below {base_url}, the base URL of the tool's source.")
        path = self.path[len(base.path) :]
        if objections := objections_to(path):
            raise ValueError(" ".join(objections))
        return path


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """Address and credentials of a tool's API, in the fields of HttpConfig."""

    base_url: str
    """Its origin; tools of one origin and authentication share a source."""
    settings: dict[str, Any]
    """All but the base URL and what is secret."""
    secrets: dict[str, str] = field(repr=False)


def connection_of(tool: ToolConfig) -> Connection:
    """Raises InvalidTool where the endpoint is no address."""
    try:
        base_url = Endpoint.of(tool.api.endpoint).origin
    except ValueError as error:
        raise InvalidTool([ToolProblem("/api/endpoint", str(error))]) from None
    authentication = tool.api.authentication
    given = {name: secret.get_secret_value() for name, secret in _secrets(authentication).items()}
    return Connection(
        base_url=base_url,
        settings={"authentication": authentication.type} | _settings(authentication),
        # Those that are not given are entered later.
        secrets={name: secret for name, secret in given.items() if secret},
    )


def _settings(authentication: Authentication) -> dict[str, str]:
    match authentication:
        case ApiKey():
            return {"api_key_in": authentication.where, "api_key_name": authentication.name}
        case Basic():
            return {"username": authentication.username}
        case OAuthClientCredentials():
            return {
                "oauth_token_url": authentication.token_url,
                "oauth_client_id": authentication.client_id,
                "oauth_scope": authentication.scope,
                "oauth_audience": authentication.audience,
            }
    return {}


def _secrets(authentication: Authentication) -> dict[str, SecretStr]:
    match authentication:
        case ApiKey():
            return {"api_key": authentication.key}
        case Bearer():
            return {"token": authentication.token}
        case Basic():
            return {"password": authentication.password}
        case OAuthClientCredentials():
            return {"oauth_client_secret": authentication.client_secret}
    return {}


WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})


def placed_arguments(tool: ToolConfig, path_parameters: Collection[str]) -> dict[str, ArgumentPlace]:
    """By argument, in the order of the schema's properties."""
    said = tool.field_mappings.input
    usual: Place = "query" if tool.api.method in WITHOUT_BODY else "body"
    placed = {}
    for argument in tool.input_schema.get("properties", {}):
        place = said.get(argument)
        if place is None:
            place = ArgumentPlace.model_validate({"in": "path" if argument in path_parameters else usual})
        placed[argument] = _with_name(place, argument)
    return placed


def _with_name(place: ArgumentPlace, argument: str) -> ArgumentPlace:
    # An empty pointer that was written down is the whole body.
    if place.name or (place.place == "body" and "name" in place.model_fields_set):
        return place
    return place.model_copy(update={"name": pointer_of([argument]) if place.place == "body" else argument})


class HttpOperation(BaseModel):
    """`metadata` of the workflow of an HTTP tool."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, serialize_by_alias=True)

    method: Method
    path: str = Field(max_length=2_000)
    """Below the source's base URL, `/orders/{order_id}`; empty: the base URL itself."""
    arguments: dict[str, ArgumentPlace] = {}
    """Every argument that there is, with its place and name written out."""
    constants: list[Constant] = []
    body_format: BodyFormat = "json"
    output: dict[str, str] = {}
    idempotency_header: str = ""
    required: list[str] = []
    """Arguments that have to be given, may be null and go where null cannot be said."""
    output_is_promised: bool = Field(default=True, exclude_if=bool)
    """Clients get the output schema, and results are validated against it."""
    anonymous: bool = Field(default=False, exclude_if=operator.not_)
    """Sent without the source's credentials."""
    path_defaults: dict[str, Any] = {}
    """Of arguments in the path that may be left out."""

    @classmethod
    def of(cls, workflow: WorkflowRef) -> Self:
        """Raises Misconfigured where the workflow is no HTTP tool."""
        try:
            return cls.model_validate(workflow.metadata)
        except ValidationError:
            raise Misconfigured(f"{workflow.name} is not declared as an HTTP tool.") from None

    @property
    def is_safe(self) -> bool:
        return self.method in SAFE_METHODS
