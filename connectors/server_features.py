"""Prompts, resources and resource templates of an MCP server, validated one object at a time."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from pydantic import AnyUrl, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from connectors.definitions import OptionalText, RejectedDefinition, Text, explain, readable
from connectors.formats.json import TooDeep

LONGEST_ADDRESS = 500
LONGEST_MIME_TYPE = 255
MOST_ARGUMENTS = 100
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,40}:[!-~]+")
UNSAFE = re.compile(r'[<>"\\^`{|}]')  # Not allowed in URIs (RFC 3986), which clients therefore refuse
any_url = TypeAdapter(AnyUrl)


class FeatureKind(StrEnum):
    PROMPT = "prompt"
    RESOURCE = "resource"
    TEMPLATE = "template"


ID_KEYS: Mapping[FeatureKind, str] = {
    FeatureKind.PROMPT: "name",
    FeatureKind.RESOURCE: "uri",
    FeatureKind.TEMPLATE: "uriTemplate",
}


def _false_unless_true(value: Any) -> bool:
    return value is True


class PromptArgument(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(min_length=1, max_length=255)
    title: OptionalText = ""
    description: Text = Field(default="", max_length=2_000)
    required: Annotated[bool, BeforeValidator(_false_unless_true)] = False


class FeatureDefinition(BaseModel):
    """Upstream's words only, without what changes with each use, such as a resource's size."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: FeatureKind
    id: str = Field(min_length=1, max_length=LONGEST_ADDRESS)
    """What the server calls it: a prompt's name, a resource's URI, a URI template. Sent to it unchanged."""
    name: Text = Field(min_length=1, max_length=255)
    title: OptionalText = ""
    description: Text = Field(default="", max_length=5_000)
    mime_type: str = Field(default="", max_length=LONGEST_MIME_TYPE, pattern="^[ -~]*$")
    arguments: list[PromptArgument] = Field(default_factory=list, max_length=MOST_ARGUMENTS)


def parse_feature(raw: Any, kind: FeatureKind, *, position: int) -> FeatureDefinition | RejectedDefinition:
    """One entry of a server's list. Optional fields that are null count as absent."""
    if not isinstance(raw, dict):
        return RejectedDefinition(
            position=position, id="", name="", reason=f"expected an object, got {type(raw).__name__}"
        )
    given = {key: value for key, value in raw.items() if value is not None}
    identifier, name = given.get(ID_KEYS[kind]), given.get("name")
    if isinstance(raw, TooDeep):
        reason = "nested too deep to be read"
    else:
        known = ("name", "title", "description") + (("arguments",) if kind is FeatureKind.PROMPT else ())
        fields = {key: given[key] for key in known if key in given}
        fields |= {"kind": kind, "id": identifier, "mime_type": given.get("mimeType", "")}
        try:
            definition = FeatureDefinition.model_validate(fields)
        except ValidationError as error:
            reason = explain(error)
        else:
            reason = _problem_of(definition)
            if not reason:
                return definition
    return RejectedDefinition(
        position=position, id=readable(identifier), name=readable(name), reason=f"{kind}: {reason}"
    )


def _problem_of(definition: FeatureDefinition) -> str:
    texts = [definition.id, *(argument.name for argument in definition.arguments)]
    if not all(text.isprintable() for text in texts):
        return "its name, its address or an argument's name has characters that cannot be printed"
    names = [argument.name for argument in definition.arguments]
    if len(set(names)) < len(names):
        return "two of its arguments have the same name"
    match definition.kind:
        case FeatureKind.RESOURCE:
            return address_problem(definition.id)
        case FeatureKind.TEMPLATE:
            return _template_problem(definition.id)
    return ""


def address_problem(uri: str) -> str:
    """Why a client could not use it as a URI; empty if it can."""
    if not ADDRESS.fullmatch(uri) or UNSAFE.search(uri):
        return "its address is no URI of printable ASCII characters"
    try:
        any_url.validate_python(uri)
    except ValidationError:
        return "its address is no valid URI"
    return ""


def _template_problem(template: str) -> str:
    # A template that begins with a variable would match the addresses of everything else.
    if not ADDRESS.fullmatch(template):
        return "its template does not begin with a scheme, or has characters that no URI has"
    try:
        parsed = UriTemplate.parse(template, max_length=LONGEST_ADDRESS)
    except InvalidUriTemplate as error:
        return f"its template cannot be used: {error}"[:1000]
    return "" if parsed.variable_names else "its template has no variable"
