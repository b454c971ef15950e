"""The model's proposals, parsed but not yet trusted."""

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from connectors.formats.json import UnreadableJSON, parse_json
from connectors.http_tools.specs import HTTPRequestSpec
from connectors.network.redaction import shorten

LONGEST_PROPOSAL = 100_000
"""Characters."""
LONGEST_REASON = 2_000
MOST_PROBLEMS = 5
"""In one error message."""


class Proposal(BaseModel):
    """The model's answer to the selection prompt, checked for its shape only (C4.4, C4.5)."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    tool: str | None
    """A tool's name; None: none of them fits."""
    reason: str = Field(default="", max_length=LONGEST_REASON)
    arguments: dict[str, Any] | None = None
    http_request: HTTPRequestSpec | None = None
    """For tools with an endpoint, the request that the model has in mind; the product makes its own of it."""


class UnreadableProposal(ValueError):
    """The answer is no proposal; the message tells the model what to mend."""


def read_proposal(text: str) -> Proposal:
    """Takes JSON, also in a fence or with words around it. Raises UnreadableProposal."""
    written = _with_plain_members(_the_one_proposal(text))
    try:
        return Proposal.model_validate(written)
    except ValidationError as error:
        raise UnreadableProposal(_sentence(error)) from None


REQUEST_SCHEMA = {
    "type": "object",
    "properties": {
        "method": {"type": "string"},
        "url": {"type": "string"},
        "headers": {"type": "object"},
        "query_params": {"type": "object"},
        "body": {},
    },
    "required": ["method", "url"],
}


def proposal_schema(tool_names: list[str], *, has_endpoints: bool = True) -> dict[str, Any]:
    """JSON Schema that servers with structured outputs hold the model to.

    The reason comes first: where the order is kept, the model thinks before it chooses.
    """
    names: list[str | None] = [*tool_names, None]
    properties: dict[str, Any] = {
        "reason": {"type": "string"},
        # Without a type: beside a list of types, llama.cpp does not keep to the names.
        "tool": {"enum": names},
        "arguments": {"type": "object"},
    }
    requests = {"http_request": REQUEST_SCHEMA} if has_endpoints else {}
    return {"type": "object", "properties": properties | requests, "required": list(properties)}


def _the_one_proposal(text: str) -> dict[str, Any]:
    if len(text) > LONGEST_PROPOSAL:
        raise UnreadableProposal(f"The answer is longer than {LONGEST_PROPOSAL:,} characters.")
    objects = list(objects_in(text))
    proposals = [found for found in objects if "tool" in found]
    if not objects:
        raise UnreadableProposal("The answer holds no complete JSON object.")
    if not proposals:
        raise UnreadableProposal('The JSON object has no "tool".')
    if any(other != proposals[0] for other in proposals):
        raise UnreadableProposal("The answer holds more than one proposal; give exactly one.")
    return proposals[0]


def _with_plain_members(found: dict[str, Any]) -> dict[str, Any]:
    """As meant: what models write in a way of their own but without ambiguity."""
    # Function calling, which many models are trained for, calls them so.
    arguments = found.get("arguments", found.get("parameters"))
    reason = found.get("reason")
    return {
        "tool": found["tool"] or None,
        "reason": shorten(reason, LONGEST_REASON) if isinstance(reason, str) else reason or "",
        "arguments": _parsed(arguments) if isinstance(arguments, str) else arguments,
        "http_request": _request(found.get("http_request")),
    }


def _parsed(arguments: str) -> Any:
    """Function calling also writes them as text."""
    try:
        return parse_json(arguments.encode("utf-8", "replace")) if arguments.strip() else None
    except UnreadableJSON as error:
        raise UnreadableProposal(f'"arguments" is text that is no JSON object. {error}') from None


def _request(given: Any) -> Any:
    """Null is as good as left out; a method counts in any letters."""
    if not isinstance(given, dict):
        return given or None
    stated = {name: value for name, value in given.items() if value is not None}
    if isinstance(method := stated.get("method"), str):
        stated["method"] = method.upper()
    return stated or None


def _sentence(error: ValidationError) -> str:
    """Without the values: they may be long."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    told = [f'"{".".join(map(str, problem["loc"]))}": {problem["msg"]}' for problem in problems]
    return "The proposal has not the shape that was asked for. " + "; ".join(told[:MOST_PROBLEMS])


TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}]', re.DOTALL)
"""Possessive, so that even an unclosed string is passed over once."""


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """Those that are in no other. Braces that hold no JSON are passed over, with all that is in them."""
    for span in _braces(text):
        try:
            value = parse_json(span.encode("utf-8", "replace"))
        except UnreadableJSON:
            continue
        if isinstance(value, dict):
            yield value


def _braces(text: str) -> Iterator[str]:
    """From each outermost brace to the one that closes it."""
    begin = text.find("{")
    while begin >= 0:
        depth = 0
        for token in TOKEN.finditer(text, begin):
            depth += (token[0] == "{") - (token[0] == "}")
            if not depth:
                break
        if depth:
            return
        yield text[begin : token.end()]
        begin = text.find("{", token.end())
