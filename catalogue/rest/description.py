"""The API's description: what is true of every operation is said once, here."""

from typing import Any

from rest_framework import serializers

PROBLEM = {"$ref": "#/components/schemas/Problem"}
DONE = "Done."
ANSWERS = {
    "400": "The request is not valid; nothing was changed.",
    "401": "No access token, or one that is unknown, expired or revoked.",
    "403": "The token lacks a scope, or the member of staff a permission; the answer names it.",
    "404": "It does not exist, or this caller may not see it; of a list, there is no such page.",
    "413": "The body is larger than CATALOGUE_MAX_REQUEST_BYTES.",
    "415": "The body is not declared as application/json.",
    "429": "Too many wrong access tokens came from this address; `Retry-After` says when to go on.",
}


class PlaceSerializer(serializers.Serializer[Any]):
    """One offending place of a request."""

    path = serializers.CharField(
        help_text="JSON Pointer into the body, such as `/arguments/text`, or `?name` for a query parameter."
    )
    message = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """What every error looks like."""

    detail = serializers.CharField(help_text="What went wrong and what to do, in a sentence.")
    kind = serializers.ChoiceField(
        choices=["discovery", "validation", "execution", "timeout", "configuration"],
        required=False,
        help_text="Which of the five kinds of error it is, where one applies.",
    )
    errors = PlaceSerializer(many=True, required=False)  # type: ignore[assignment]


def describe_errors(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the errors that any operation can answer with; called by drf-spectacular on the whole document."""
    for path, operations in result["paths"].items():
        for operation in operations.values():
            for answer in operation["responses"].values():
                answer["description"] = answer["description"] or DONE
            for code in _codes(path, operation):
                operation["responses"].setdefault(code, _answer(ANSWERS[code]))
            operation["responses"] = dict(sorted(operation["responses"].items()))
    return result


def _codes(path: str, operation: dict[str, Any]) -> list[str]:
    codes = ["401", "403", "429"]
    queried = {item["name"] for item in operation.get("parameters", ()) if item["in"] == "query"}
    if "{" in path or "page" in queried:
        codes.append("404")
    if "requestBody" in operation:
        codes += ["400", "413", "415"]
    elif queried:
        codes.append("400")
    return codes


def _answer(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": PROBLEM}}}
