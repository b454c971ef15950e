"""A workflow as an engine describes it (A6.1), checked one object at a time."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from connectors.formats.json import TooDeep

LINES = str.maketrans("", "", "\n\t")


def _printable(value: Any) -> Any:
    """Drop what no database column or terminal should get: NUL, other controls, lone surrogates."""
    if not isinstance(value, str):
        return value
    if value.isprintable():
        return value.strip()
    if value.translate(LINES).isprintable():
        return value.strip()
    kept = (
        char
        for char in value
        if char in "\n\t" or (ord(char) > 31 and (char.isprintable() or char.isspace()))
    )
    return "".join(kept).encode("utf-8", "ignore").decode("utf-8").strip()


def _number_as_text(value: Any) -> Any:
    """Engines number their workflows and versions; a bool is an int to Python, but not an id."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _none_as_empty(value: Any) -> Any:
    return {} if value is None else value


def _text_or_nothing(value: Any) -> Any:
    return value[:255] if isinstance(value, str) else ""


def _seconds_or_none(value: Any) -> Any:
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_SECONDS
    return value if usable else None


MAX_SECONDS = 2_592_000
"""30 days."""
Text = Annotated[str, BeforeValidator(_printable)]
Identifier = Annotated[str, BeforeValidator(_printable), BeforeValidator(_number_as_text)]


OptionalText = Annotated[Text, BeforeValidator(_text_or_nothing)]
OptionalSeconds = Annotated[int | None, BeforeValidator(_seconds_or_none)]


class Interaction(BaseModel):
    """A query that a run answers, or a signal that it accepts, while it runs."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, serialize_by_alias=True)

    name: Text = Field(min_length=1, max_length=255)
    description: Text = Field(default="", max_length=2_000)
    input_schema: dict[str, Any] | None = Field(default=None, alias="inputSchema")
    """JSON Schema of an object."""


class WorkflowDefinition(BaseModel):
    """One workflow, upstream's words only.

    `input_schema` is what the engine sent, unchecked, or None: the catalogue validates it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    id: Identifier = Field(min_length=1, max_length=255)
    name: Text = Field(min_length=1, max_length=255)
    title: OptionalText = ""
    """For people; empty: the name is good enough."""
    description: Text = Field(max_length=20_000)
    """Empty: it is listed all the same, and has to be described here."""
    category: Text = Field(default="workflow", max_length=100)
    version: Identifier = Field(default="1.0.0", max_length=100)
    input_schema: Any = Field(default=None, validation_alias=AliasChoices("inputSchema", "input_schema"))
    output_schema: Any = Field(default=None, validation_alias=AliasChoices("outputSchema", "output_schema"))
    """Only where the engine vouches for it: clients validate results against it."""
    execution_type: Literal["sync", "async"] = Field(
        default="async", validation_alias=AliasChoices("executionType", "execution_type")
    )
    tags: list[Text] = Field(default_factory=list)
    author: Text = Field(default="", max_length=255)
    annotations: Any = None
    """MCP's hints, unchecked as well; those and the icons never make a workflow unusable."""
    icons: Any = None
    timeout_seconds: OptionalSeconds = None
    """As upstream proposes; None: the product's default."""
    cache_seconds: OptionalSeconds = None
    """How long a result may answer the same arguments again; None: not at all."""
    queries: list[Interaction] = Field(default_factory=list)
    signals: list[Interaction] = Field(default_factory=list)
    metadata: Annotated[dict[str, Any], BeforeValidator(_none_as_empty)] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedDefinition:
    """An object in a listing that is no usable workflow, and why."""

    position: int
    """Where in the listing, from 0."""
    id: str
    """As far as it could be read; empty otherwise."""
    name: str
    reason: str


LISTED_IN_METADATA = ("tags", "author", "outputSchema", "annotations", "icons")
OPTIONAL_TEXTS = ("category", "version", "executionType", "execution_type", "author", "tags")


TOO_DEEP = "nested too deep to be read"


def parse_definition(raw: Any, *, position: int) -> WorkflowDefinition | RejectedDefinition:
    """Read one object of a listing; a null optional field counts as absent (A3.3)."""
    if not isinstance(raw, dict):
        return RejectedDefinition(
            position=position, id="", name="", reason=f"expected an object, got {type(raw).__name__}"
        )
    if isinstance(raw, TooDeep):
        return RejectedDefinition(
            position=position,
            id=_readable(raw.get("id")),
            name=_readable(raw.get("name")),
            reason=TOO_DEEP,
        )
    present = {key: value for key, value in raw.items() if not (value is None and key in OPTIONAL_TEXTS)}
    try:
        return WorkflowDefinition.model_validate(_with_listed_metadata(present))
    except ValidationError as error:
        return RejectedDefinition(
            position=position,
            id=_readable(raw.get("id")),
            name=_readable(raw.get("name")),
            reason=_reason(error),
        )


def _with_listed_metadata(raw: dict[str, Any]) -> dict[str, Any]:
    """What A6.1 has no field for may stand in `metadata`, the only free one that it knows."""
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict):
        return raw
    lifted = {key: metadata[key] for key in LISTED_IN_METADATA if metadata.get(key) is not None}
    return lifted | raw


def _readable(value: Any) -> str:
    return str(_printable(str(value)))[:255] if isinstance(value, str | int) else ""


def _reason(error: ValidationError) -> str:
    """`name: Field required; executionType: Input should be 'sync' or 'async'`."""
    problems = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)[:1000]
