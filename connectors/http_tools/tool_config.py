"""A tool that is one HTTP call, as whoever declares it writes it down (C1.4)."""

import operator
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, model_validator

from connectors.http_tools.specs import Method, Scalar
from connectors.settings import HeaderSecret

Place = Literal["path", "query", "header", "body"]
BodyFormat = Literal["json", "form", "multipart"]
IN = AliasChoices("in", "place")


class _Strict(BaseModel):
    # Without hide_input_in_errors a mistyped secret would be quoted by the error about it.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        # What stands below a field describes it in the API's document, too.
        use_attribute_docstrings=True,
    )


class NoAuthentication(_Strict):
    type: Literal["none"] = "none"


class ApiKey(_Strict):
    """A key in a header or in the query."""

    type: Literal["api_key"]
    where: Literal["header", "query"] = Field(
        default="header", validation_alias=AliasChoices("in", "where"), serialization_alias="in"
    )
    name: str = Field(min_length=1, max_length=100)
    key: HeaderSecret = SecretStr("")


class Bearer(_Strict):
    """`Authorization: Bearer <token>`."""

    type: Literal["bearer"]
    token: HeaderSecret = SecretStr("")


class Basic(_Strict):
    """`Authorization: Basic ...`."""

    type: Literal["basic"]
    username: str = Field(max_length=500)
    password: SecretStr = SecretStr("")


class OAuthClientCredentials(_Strict):
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


class ApiConfig(_Strict):
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


class ArgumentPlace(_Strict):
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


class Constant(_Strict):
    """What is sent with every call, whatever the arguments."""

    place: Literal["query", "header", "body"] = Field(validation_alias=IN, serialization_alias="in")
    name: str = Field(min_length=1, max_length=500)
    value: Scalar | list[Any] | dict[str, Any] | None


class FieldMappings(_Strict):
    """How arguments become a request, and the response an output."""

    input: dict[str, ArgumentPlace] = {}
    """By argument. One that is not named goes where the path names it, else into the query of GET, HEAD and
    DELETE, else into the body."""
    constants: list[Constant] = []
    output: dict[str, str] = {}
    """Field of the output -> JSON Pointer into the response's body. Empty: the body is the output."""


class ToolConfig(_Strict):
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
