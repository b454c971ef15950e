"""A document's operations as tools."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import ValidationError

from connectors.http_tools.openapi.arguments import collect_arguments
from connectors.http_tools.openapi.bodies import Bodies, Body
from connectors.http_tools.openapi.document import Document
from connectors.http_tools.openapi.fixed_query import split_query
from connectors.http_tools.openapi.naming import Names
from connectors.http_tools.openapi.operations import Operation, Selection, operations_of
from connectors.http_tools.openapi.parameters import Parameters
from connectors.http_tools.openapi.refusals import NoTool, RefusedOperation
from connectors.http_tools.openapi.responses import output_schema_of
from connectors.http_tools.openapi.schemas import Schemas
from connectors.http_tools.openapi.security import check_security, key_place
from connectors.http_tools.openapi.security_schemes import Settings
from connectors.http_tools.openapi.servers import check_server
from connectors.http_tools.openapi.texts import LONGEST_TITLE, description_of, plain_text
from connectors.http_tools.tool_config import ApiConfig, FieldMappings, ToolConfig

MAX_OPERATIONS = 5_000
WITHOUT_BODY = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadTool:
    """An operation as a tool, without what the source says of who we are."""

    config: ToolConfig
    operation: Operation
    notes: list[str]
    """What of the operation the tool has not, in sentences."""


@dataclass(kw_only=True, slots=True)
class ReadTools:
    """What a document comes to: each of its operations is in here once."""

    tools: list[ReadTool] = field(default_factory=list)
    refused: list[RefusedOperation] = field(default_factory=list)
    deprecated: int = 0
    """Left out because they are."""
    not_chosen: int = 0


def read_tools(
    document: Document,
    *,
    base_url: str,
    settings: Settings,
    selection: Selection,
    usable_pattern: Callable[[str], bool],
) -> ReadTools:
    """Never raises, whatever the document. `settings`: how the source authenticates."""
    reader = _Reader(
        document=document,
        base_url=base_url,
        settings=settings,
        inputs=Schemas(document, "request", usable_pattern),
        outputs=Schemas(document, "response", usable_pattern),
    )
    found, names = ReadTools(), Names()
    for position, operation in enumerate(operations_of(document)):
        # A name is taken whether the operation is chosen or not, so that it is the same at the next import.
        name = names.take(operation)
        if not selection.names(operation):
            found.not_chosen += 1
        elif operation.is_deprecated and not selection.deprecated:
            found.deprecated += 1
        else:
            reader.read(operation, name, found, is_one_too_many=position >= MAX_OPERATIONS)
    return found


def refusal_of(operation: Operation, reason: str, pointer: str = "") -> RefusedOperation:
    return RefusedOperation(
        method=operation.method,
        path=operation.path,
        operation_id=operation.id,
        pointer=pointer or operation.pointer,
        reason=reason,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reader:
    document: Document
    base_url: str
    settings: Settings
    inputs: Schemas
    outputs: Schemas

    def read(self, operation: Operation, name: str, found: ReadTools, *, is_one_too_many: bool) -> None:
        try:
            if is_one_too_many:
                raise NoTool(f"Only the first {MAX_OPERATIONS:,} operations of a document are read.")
            found.tools.append(self._tool(operation, name))
        except NoTool as refusal:
            found.refused.append(refusal_of(operation, refusal.reason, refusal.pointer))

    def _tool(self, operation: Operation, name: str) -> ReadTool:
        if operation.objection is not None:
            raise operation.objection
        raw, at = operation.raw, operation.pointer
        levels = ((raw, at), (operation.item, operation.item_pointer))
        check_server(self.document, *levels, base_url=self.base_url)
        check_security(self.document, raw, at, self.settings)
        notes: list[str] = []
        config = self._config(operation, name, notes)
        return ReadTool(config=config, operation=operation, notes=notes)

    def _config(self, operation: Operation, name: str, notes: list[str]) -> ToolConfig:
        raw, at = operation.raw, operation.pointer
        path, constants = split_query(operation.path, operation.item_pointer)
        lists = [(item.get("parameters"), f"{place}/parameters") for item, place in self._levels(operation)]
        key = key_place(self.settings)
        parameters = Parameters(self.document, self.inputs, key, notes).arguments(path, lists)
        body = self._body(operation, notes)
        arguments = collect_arguments([*parameters, *body.arguments], self.inputs)
        try:
            return ToolConfig(
                name=name,
                title=plain_text(raw.get("summary"), LONGEST_TITLE),
                description=description_of(
                    raw.get("summary"),
                    raw.get("description"),
                    otherwise=f"{operation.method} {operation.path}",
                ),
                tags=operation.tags,
                api=ApiConfig(
                    endpoint=f"{self.base_url}{path}",
                    method=operation.method,  # type: ignore[arg-type]
                    body_format=body.body_format,
                ),
                input_schema=arguments.schema,
                output_schema=output_schema_of(
                    self.document, self.outputs, raw.get("responses"), f"{at}/responses"
                ),
                field_mappings=FieldMappings(input=arguments.places, constants=constants + body.constants),
            )
        except ValidationError as error:
            raise NoTool(_in_words(error)) from None

    def _levels(self, operation: Operation) -> list[tuple[dict[str, object], str]]:
        """The outer one first, which the inner one overrides."""
        return [(operation.item, operation.item_pointer), (operation.raw, operation.pointer)]

    def _body(self, operation: Operation, notes: list[str]) -> Body:
        if "requestBody" not in operation.raw:
            return Body()
        bodies = Bodies(self.document, self.inputs, notes)
        raw, at = operation.raw["requestBody"], f"{operation.pointer}/requestBody"
        if operation.method not in WITHOUT_BODY:
            return bodies.body(raw, at)
        if not _is_empty(bodies, raw, at):
            notes.append(f"Its body is left out: requests with the method {operation.method} have none.")
        return Body()


def _is_empty(bodies: Bodies, raw: object, pointer: str) -> bool:
    """One that cannot be read is not."""
    try:
        return bodies.is_empty(raw, pointer)
    except NoTool:
        return False


def _in_words(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    return f"It makes no tool: {'.'.join(map(str, problem['loc']))}: {problem['msg']}."
