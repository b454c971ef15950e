"""Whether every argument and constant of a declared tool has a place of its own that can carry it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from connectors.errors import Rejected
from connectors.formats.json_schema import item_types_of, pointer_of, steps_of, types_of
from connectors.http_tools.multipart import MEDIA_TYPE
from connectors.http_tools.problems import ToolProblem
from connectors.http_tools.sending import form_pairs
from connectors.http_tools.specs import SAFE_METHODS
from connectors.http_tools.texts import NoText, scalar_of, scalars_of, text_of
from connectors.http_tools.tool_config import ApiKey, ArgumentPlace, Constant, Place, ToolConfig
from connectors.network.headers import objection_to_name, objection_to_value

NESTED = frozenset({"object", "array"})


@dataclass(frozen=True, slots=True)
class _Claim:
    """Somebody wants to be at a place of the request."""

    place: Place
    name: str
    """As it is compared; in a body the pointer."""
    who: str
    where: str
    """JSON Pointer into the ToolConfig."""


def place_problems(tool: ToolConfig, arguments: dict[str, ArgumentPlace]) -> Iterator[ToolProblem]:
    for argument, place in arguments.items():
        yield from _argument(tool, argument, place)
    for position, constant in enumerate(tool.field_mappings.constants):
        where = f"/field_mappings/constants/{position}"
        objections = (
            _name_objection(tool, constant.place, constant.name, constant=True),
            _value(tool, constant),
        )
        for objection in filter(None, objections):
            yield ToolProblem(where, objection)
    yield from _shared_places([*_claims(tool, arguments)])


def _argument(tool: ToolConfig, argument: str, place: ArgumentPlace) -> Iterator[ToolProblem]:
    where = _where(tool, argument)
    if objection := _name_objection(tool, place.place, place.name):
        yield ToolProblem(where, objection)
    schema, root = tool.input_schema["properties"][argument], tool.input_schema
    types, items = types_of(schema, root), item_types_of(schema, root)
    yield from _file_problems(tool, argument, place, where)
    if place.as_json:
        return
    if place.place != "body" and types == {"object"}:
        yield ToolProblem(where, f"{argument} is an object, which only a body can carry.")
    elif place.place != "body" and types == {"array"} and items and items <= NESTED:
        yield ToolProblem(where, f"{argument} is a list of lists or objects, which only a body can carry.")
    elif _is_formless(tool, place) and types and "object" not in types:
        yield ToolProblem(where, f"{argument} is the whole form, so it has to be an object.")


def _is_formless(tool: ToolConfig, place: ArgumentPlace) -> bool:
    return tool.api.body_format != "json" and place.place == "body" and not place.name


def _file_problems(
    tool: ToolConfig, argument: str, place: ArgumentPlace, where: str
) -> Iterator[ToolProblem]:
    if not place.file:
        return
    is_field = place.place == "body" and tool.api.body_format == "multipart" and place.name.count("/") == 1
    if not is_field:
        yield ToolProblem(where, f"{argument} is a file, which only a field of a multipart body can be.")
    if place.as_json:
        yield ToolProblem(where, f"{argument} cannot be a file and JSON at once.")
    if place.media_type and not MEDIA_TYPE.fullmatch(place.media_type):
        yield ToolProblem(where, f"The media type of {argument} is none.")


def _name_objection(tool: ToolConfig, place: Place, name: str, *, constant: bool = False) -> str:
    if _is_the_keys(tool, place, name):
        return f"{name} carries the credentials, which the product itself adds."
    if place == "header" and (why := objection_to_name(name, constant=constant)):
        return f"{name} {why}."
    if place != "body":
        return ""
    if tool.api.method in SAFE_METHODS:
        return f"A {tool.api.method} request has no body."
    try:
        steps_of(name)
    except ValueError as error:
        return str(error)
    return ""


def _is_the_keys(tool: ToolConfig, place: Place, name: str) -> bool:
    match tool.api.authentication:
        case ApiKey(where="header", name=taken):
            return place == "header" and name.lower() == taken.lower()
        case ApiKey(where="query", name=taken):
            return place == "query" and name == taken
    return False


def _value(tool: ToolConfig, constant: Constant) -> str:
    """Why this constant cannot be sent; empty if it can."""
    try:
        match constant.place:
            case "header":
                return _header_value(tool, constant.name, text_of(scalar_of(constant.value)))
            case "query":
                scalars_of(constant.value)
            case "body" if tool.api.body_format != "json":
                form_pairs({constant.name: constant.value})
    except NoText as error:
        return f"The value of {constant.name} {error}."
    except Rejected:
        return f"The value of {constant.name} cannot be written in a form."
    return ""


def _header_value(tool: ToolConfig, name: str, value: str) -> str:
    if why := objection_to_value(value):
        return f"The value of {name} {why}."
    media_type = value.partition(";")[0].strip().lower()
    is_json = tool.api.body_format == "json" and media_type.endswith(("/json", "+json"))
    if name.lower() == "content-type" and not is_json:
        return "The body is sent in the tool's body_format, so Content-Type can only be a type of JSON."
    return ""


def _claims(tool: ToolConfig, arguments: dict[str, ArgumentPlace]) -> Iterator[_Claim]:
    for argument, place in arguments.items():
        yield _Claim(place.place, _compared(place.place, place.name), argument, _where(tool, argument))
    for position, constant in enumerate(tool.field_mappings.constants):
        where = f"/field_mappings/constants/{position}"
        yield _Claim(constant.place, _compared(constant.place, constant.name), "a constant", where)
    if header := tool.api.idempotency_header:
        yield _Claim("header", header.lower(), "the idempotency key", "/api/idempotency_header")


def _compared(place: Place, name: str) -> str:
    return name.lower() if place == "header" else name


def _shared_places(claims: list[_Claim]) -> Iterator[ToolProblem]:
    taken: dict[tuple[str, str], _Claim] = {}
    for claim in claims:
        if first := taken.get((claim.place, claim.name)):
            at = claim.name or "whole"
            yield ToolProblem(claim.where, f"{claim.who} and {first.who} are both the {claim.place}'s {at}.")
        taken.setdefault((claim.place, claim.name), claim)
    yield from _places_inside_others(taken.values())


def _places_inside_others(claims: Iterable[_Claim]) -> Iterator[ToolProblem]:
    fields = {steps: claim for claim in claims if (steps := _steps(claim)) is not None}
    for steps, claim in fields.items():
        for length in range(len(steps)):
            if outer := fields.get(steps[:length]):
                told = f"{claim.who} goes to {claim.name}, which is inside of what {outer.who} is."
                yield ToolProblem(claim.where, told)


def _steps(claim: _Claim) -> tuple[str, ...] | None:
    try:
        return steps_of(claim.name) if claim.place == "body" else None
    except ValueError:
        return None


def _where(tool: ToolConfig, argument: str) -> str:
    """Where the declaration says it, if it does."""
    mapped = argument in tool.field_mappings.input
    return pointer_of(
        ["field_mappings", "input", argument] if mapped else ["input_schema", "properties", argument]
    )
