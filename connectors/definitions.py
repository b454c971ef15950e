"""Workflows as an engine lists them (A6.1), and prompts and resources as an MCP server does, validated one
object at a time."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from connectors.formats.json import TooDeep, as_object, is_number
from connectors.formats.mcp_apps import read_app_meta

LINES = str.maketrans("", "", "\n\t")
MAX_SECONDS = 2_592_000
"""30 days: the longest timeout of a run, and the longest use of its result."""
OptionalObject = Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)]
LISTED_IN_METADATA = ("tags", "author", "outputSchema", "annotations", "icons")
OUTPUT_SCHEMA = "output_schema"  # Metadata key for the schema of a result that MCP does not promise
OPTIONAL_TEXTS = ("category", "version", "executionType", "execution_type", "author", "tags")
METADATA_KEY, META = "mcp", "meta"  # Metadata of an MCP server's tool; in it, what is kept of its `_meta`
TOO_DEEP = "nested too deep to be read"
MAX_ADDRESS_LENGTH = 500
MAX_HTML_LENGTH = 2_000_000
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,40}:[!-~]+")
UNSAFE = re.compile(r'[<>"\\^`{|}]')  # Not allowed in URIs (RFC 3986), which clients therefore refuse
SKIPPED = re.compile(r"[\x00-\x20\x7f-\x9f]+")  # By browsers, in addresses
SCRIPTS = ("javascript:", "vbscript:", "data:text/html")
any_url = TypeAdapter(AnyUrl)


def _printable(value: Any) -> Any:
    """Drop NUL, other control characters and lone surrogates, which databases and terminals refuse."""
    if not isinstance(value, str):
        return value
    if value.isprintable() or value.translate(LINES).isprintable():
        return value.strip()
    kept = (
        char
        for char in value
        if char in "\n\t" or (ord(char) > 31 and (char.isprintable() or char.isspace()))
    )
    return "".join(kept).encode("utf-8", "ignore").decode("utf-8").strip()


Text = Annotated[str, BeforeValidator(_printable)]
Identifier = Annotated[Text, BeforeValidator(lambda value: str(value) if is_number(value) else value)]
"""Some engines have numbers as ids and versions."""
OptionalText = Annotated[Text, BeforeValidator(lambda value: value[:255] if isinstance(value, str) else "")]
OptionalSeconds = Annotated[
    int | None,
    BeforeValidator(
        lambda value: (
            value if isinstance(value, int) and value is not True and 0 < value <= MAX_SECONDS else None
        )
    ),
]
OptionalSize = Annotated[
    int | None, BeforeValidator(lambda size: size if type(size) is int and 0 <= size < 2**53 else None)
]


class Interaction(BaseModel):
    """A query that a run answers, or a signal that it accepts, while it runs."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, serialize_by_alias=True)

    name: Text = Field(min_length=1, max_length=255)
    description: Text = Field(default="", max_length=2_000)
    input_schema: dict[str, Any] | None = Field(default=None, alias="inputSchema")


class WorkflowDefinition(BaseModel):
    """One workflow, as the engine describes it. `input_schema` is unvalidated, or None; the catalogue
    validates it."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    id: Identifier = Field(min_length=1, max_length=255)
    name: Text = Field(min_length=1, max_length=255)
    title: OptionalText = ""
    """For people; empty: the name."""
    description: Text = Field(max_length=20_000)
    """Empty: the workflow is listed, and a curator must describe it."""
    category: Text = Field(default="workflow", max_length=100)
    version: Identifier = Field(default="1.0.0", max_length=100)
    input_schema: Any = Field(default=None, validation_alias=AliasChoices("inputSchema", "input_schema"))
    output_schema: Any = Field(default=None, validation_alias=AliasChoices("outputSchema", "output_schema"))
    """Only if the engine guarantees it, since clients validate results against it."""
    execution_type: Literal["sync", "async"] = Field(
        default="async", validation_alias=AliasChoices("executionType", "execution_type")
    )
    tags: list[Text] = Field(default_factory=list)
    author: Text = Field(default="", max_length=255)
    annotations: Any = None
    """MCP's hints, unchecked; neither they nor the icons make a workflow unusable."""
    icons: Any = None
    timeout_seconds: OptionalSeconds = None
    """The engine's suggestion; None: the product's default."""
    cache_seconds: OptionalSeconds = None
    """How long a result is reused for calls with the same arguments; None: never."""
    queries: list[Interaction] = Field(default_factory=list)
    signals: list[Interaction] = Field(default_factory=list)
    metadata: OptionalObject = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedDefinition:
    """An unusable entry of a listing, and the reason."""

    position: int
    id: str
    """Empty if it could not be read."""
    name: str
    reason: str


def parse_definition(raw: Any, *, position: int) -> WorkflowDefinition | RejectedDefinition:
    """Optional fields that are null count as absent (A3.3)."""
    if not isinstance(raw, dict):
        return not_an_object(raw, position=position)
    present = {key: value for key, value in raw.items() if not (value is None and key in OPTIONAL_TEXTS)}
    # A6.1 does not define some fields: they are in `metadata`, its only free one.
    metadata = as_object(raw.get("metadata"))
    lifted = {key: metadata[key] for key in LISTED_IN_METADATA if metadata.get(key) is not None}
    reason = TOO_DEEP
    if not isinstance(raw, TooDeep):
        try:
            return WorkflowDefinition.model_validate(lifted | present)
        except ValidationError as error:
            reason = explain(error)
    identifier, name = readable(raw.get("id")), readable(raw.get("name"))
    return RejectedDefinition(position=position, id=identifier, name=name, reason=reason)


def not_an_object(raw: Any, *, position: int) -> RejectedDefinition:
    if isinstance(raw, RejectedDefinition):  # By who read the page
        return replace(raw, position=position)
    reason = f"expected an object, got {type(raw).__name__}"
    return RejectedDefinition(position=position, id="", name="", reason=reason)


def usable_tags(tags: Any) -> list[str]:
    return [tag for tag in tags if isinstance(tag, str) and tag] if isinstance(tags, list) else []


def readable(value: Any) -> str:
    return str(_printable(str(value)))[:255] if isinstance(value, str | int) else ""


def explain(error: ValidationError) -> str:
    """`name: Field required; executionType: Input should be 'sync' or 'async'`."""
    problems = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)[:1000]


class FeatureKind(StrEnum):
    PROMPT = "prompt"
    RESOURCE = "resource"
    TEMPLATE = "template"


class PromptArgument(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(min_length=1, max_length=255)
    title: OptionalText = ""
    description: Text = Field(default="", max_length=2_000)
    required: Annotated[bool, BeforeValidator(lambda value: value is True)] = False


class FeatureDefinition(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: FeatureKind
    id: str = Field(min_length=1, max_length=MAX_ADDRESS_LENGTH)
    """The server's identifier, sent unchanged: a prompt's name, a resource's URI or a URI template."""
    name: Text = Field(min_length=1, max_length=255)
    title: OptionalText = ""
    description: Text = Field(default="", max_length=5_000)
    mime_type: str = Field(default="", max_length=255, pattern="^[ -~]*$")
    arguments: list[PromptArgument] = Field(default_factory=list, max_length=100)
    icons: Any = None
    """Unchecked; neither they nor the size make it unusable."""
    size: OptionalSize = None
    """Of a resource, in bytes."""
    html: str = Field(default="", max_length=MAX_HTML_LENGTH, exclude=True)
    """Of an app: a resource that clients show in a frame."""
    html_sha256: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    ui: Annotated[dict[str, Any], BeforeValidator(read_app_meta)] = Field(default_factory=dict)
    """Of an app: csp, permissions, prefersBorder and domain."""


def presentation_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """Returns what is kept of the `_meta` of an MCP server's tool, which tells clients how to show it."""
    return as_object(as_object(metadata.get(METADATA_KEY)).get(META))


def runs_as_script(uri: str) -> bool:
    return SKIPPED.sub("", uri).lower().startswith(SCRIPTS)


def address_problem(uri: str) -> str:
    """Returns why a client could not use it as a URI; empty if it can."""
    if runs_as_script(uri):
        return "its address is a script"
    if not ADDRESS.fullmatch(uri) or UNSAFE.search(uri):
        return "its address is not a URI of printable ASCII characters"
    try:
        any_url.validate_python(uri)
    except ValidationError:
        return "its address is not a valid URI"
    return ""
