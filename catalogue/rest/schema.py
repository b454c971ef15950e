"""The API's description, as drf-spectacular makes it."""

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import get_doc
from drf_spectacular.utils import OpenApiParameter

from catalogue.rest.base import FIELDS

FIELDS_OF_ROWS = OpenApiParameter(
    FIELDS,
    description="Fields of the response, such as `id,state`. Default: all. A generated client that requires "
    "the others cannot read such a response into its models.",
)
VERBS = {"list": "List", "retrieve": "Read one of the", "destroy": "Delete one of the"}


class DescribedByDocstrings(AutoSchema):
    """The first line of a method's docstring is the summary of its operation, the rest the description. REST
    framework's own methods have none: of a list, the view's docstring is the description."""

    view: Any

    @property
    def _method(self) -> Any:
        return getattr(self.view, getattr(self.view, "action", self.method.lower()), None)

    def get_summary(self) -> str | None:
        if told := get_doc(self._method).partition("\n")[0]:
            return told.removesuffix(".")
        verb = VERBS.get(getattr(self.view, "action", ""))
        return f"{verb} {self.view.queryset.model._meta.verbose_name_plural}" if verb else None

    def get_description(self) -> str:  # type: ignore[override]
        of_view = self.view.__doc__ if getattr(self.view, "action", "") == "list" else ""
        return " ".join((get_doc(self._method).partition("\n")[2] or of_view or "").split())

    def get_operation_id(self) -> str:
        if hasattr(self._method, "mapping"):  # An action besides those of every resource
            return f"{self._tokenize_path()[0].replace('-', '_')}_{self.view.action}"
        return super().get_operation_id()

    def get_request_serializer(self) -> Any:
        """Other actions read no body unless they declare one."""
        return None if hasattr(self._method, "mapping") else super().get_request_serializer()

    def get_override_parameters(self) -> list[Any]:
        shows_rows = getattr(self.view, "action", "") in ("list", "retrieve") and self.view.pagination_class
        return [FIELDS_OF_ROWS] if shows_rows else []


DONE = "Done."
ANSWERS = {
    "400": "The request is not valid; nothing was changed.",
    "401": "No access token, or one that is unknown, expired or revoked.",
    "403": "The token lacks a scope, or the member of staff a permission; the answer names it.",
    "404": "It does not exist, or this caller may not see it; of a list, there is no such page.",
    "406": "The `Accept` header allows none of the response's media types; the answer names them.",
    "411": "The body has no Content-Length.",
    "413": "The body is larger than CATALOGUE_MAX_REQUEST_BYTES.",
    "415": "The body has another Content-Type than those that the answer names.",
    "429": "Too many wrong access tokens came from this address; `Retry-After` says when to go on.",
    "500": "An internal error; the server's log has the details.",
    "503": "The database is not available; `Retry-After` says when to try again.",
}


def describe_errors(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """A hook of drf-spectacular: add the errors that any operation can return."""
    for path, operations in result["paths"].items():
        for operation in operations.values():
            for answer in operation["responses"].values():
                answer["description"] = answer["description"] or DONE
            codes = ["400", "401", "403", "406", "429", "500", "503"]
            queried = {item["name"] for item in operation.get("parameters", ()) if item["in"] == "query"}
            if "{" in path or "page" in queried:
                codes.append("404")
            if "requestBody" in operation:
                codes += ["411", "413", "415"]
            for code in codes:
                content = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
                described = {"description": ANSWERS[code], "content": content}
                operation["responses"].setdefault(code, described)
            operation["responses"] = dict(sorted(operation["responses"].items()))
    return result


def suit_generators(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """A hook of drf-spectacular: leave out what pydantic writes and generators of clients refuse, such as a
    title that two schemas share and objects as defaults of other classes; and write as OpenAPI 3.1 does what
    REST framework's pages call `nullable`, else clients refuse the last page."""
    for schema in result["components"]["schemas"].values():
        schema.pop("title", None)
        for field in schema.get("properties", {}).values():
            if field.pop("nullable", False):
                field["type"] = [field["type"], "null"]
            if ("$ref" in field or "oneOf" in field) and isinstance(field.get("default"), dict):
                del field["default"]
    return result


INTEGER_ID = {"type": "integer", "format": "int64", "minimum": 0, "maximum": 10**18 - 1}
TYPES_OF_IDS = {"^[0-9]{1,18}$": INTEGER_ID, "^[0-9a-fA-F-]{36}$": {"type": "string", "format": "uuid"}}


def give_ids_their_types(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """A hook: generated clients refuse an id of an answer in a path that takes another type."""
    for operations in result["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    pattern = parameter["schema"].get("pattern", "")
                    parameter["schema"] = TYPES_OF_IDS.get(pattern, parameter["schema"])
    return result


def require_discriminators(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """A hook: OpenAPI wants the property required that tells alternatives apart, and the product requires it.
    Pydantic leaves it out where it has a default."""
    schemas = result["components"]["schemas"]
    fields = [field for schema in schemas.values() for field in schema.get("properties", {}).values()]
    for told_apart in (field["discriminator"] for field in fields if "discriminator" in field):
        for reference in told_apart.get("mapping", {}).values():
            required = schemas[reference.rpartition("/")[2]].setdefault("required", [])
            if told_apart["propertyName"] not in required:
                required.insert(0, told_apart["propertyName"])
    return result
