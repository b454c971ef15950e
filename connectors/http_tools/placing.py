"""Where each argument of a declared tool goes, written out."""

from collections.abc import Collection

from connectors.formats.json_schema import pointer_of
from connectors.http_tools.tool_config import ArgumentPlace, Place, ToolConfig

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
