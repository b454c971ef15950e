"""Prompts, resources and resource templates of an MCP server, validated one object at a time."""

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AnyUrl, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from connectors.definitions import OptionalText, Text

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


def address_problem(uri: str) -> str:
    """Why a client could not use it as a URI; empty if it can."""
    if not ADDRESS.fullmatch(uri) or UNSAFE.search(uri):
        return "its address is no URI of printable ASCII characters"
    try:
        any_url.validate_python(uri)
    except ValidationError:
        return "its address is no valid URI"
    return ""
