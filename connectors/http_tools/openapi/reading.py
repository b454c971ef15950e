"""A document's operations as tools."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pydantic import ValidationError

from connectors.http_tools.openapi.arguments import Argument, collect_arguments
from connectors.http_tools.openapi.bodies import Bodies, Body
from connectors.http_tools.openapi.document import Document
from connectors.http_tools.openapi.fixed_query import split_query
from connectors.http_tools.openapi.naming import Names
from connectors.http_tools.openapi.operations import Operation, Selection, operations_of
from connectors.http_tools.openapi.parameters import Parameters
from connectors.http_tools.openapi.refusals import NoTool, RefusedOperation
from connectors.http_tools.openapi.responses import output_schema_of
from connectors.http_tools.openapi.schemas import Schemas
from connectors.http_tools.openapi.security import is_anonymous, key_place
from connectors.http_tools.openapi.security_schemes import Settings
from connectors.http_tools.openapi.servers import check_server
from connectors.http_tools.openapi.texts import LONGEST_TITLE, description_of, plain_text
from connectors.http_tools.tool_config import ApiConfig, FieldMappings, ToolConfig

MAX_OPERATIONS = 5_000
LONGEST_API = 80
"""Characters of an API's name."""
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
    idle: list[str] = field(default_factory=list)
    """Patterns and tags of the selection that no operation has."""


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
    operations = list(operations_of(document))
    reader.descriptions.update(map(_words_of, operations))
    found, names = ReadTools(idle=selection.left_over(operations)), Names()
    for position, operation in enumerate(operations):
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
    parameters: dict[str, Argument] = field(default_factory=dict)
    """By pointer."""
    descriptions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many operations are described in these words."""

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
        anonymous = is_anonymous(self.document, raw, at, self.settings)
        notes: list[str] = []
        config = self._config(operation, name, notes, anonymous=anonymous)
        return ReadTool(config=config, operation=operation, notes=notes)

    def _config(self, operation: Operation, name: str, notes: list[str], *, anonymous: bool) -> ToolConfig:
        raw, at = operation.raw, operation.pointer
        path, constants = split_query(operation.path, operation.item_pointer)
        lists = [(item.get("parameters"), f"{place}/parameters") for item, place in self._levels(operation)]
        key = key_place(self.settings)
        read = Parameters(self.document, self.inputs, key, notes, self.parameters)
        parameters = read.arguments(path, lists)
        body = self._body(operation, notes)
        arguments = collect_arguments([*parameters, *body.arguments], self.inputs, body.demands)
        try:
            return ToolConfig(
                name=name,
                title=plain_text(raw.get("summary"), LONGEST_TITLE),
                description=self._description(operation),
                tags=operation.tags,
                api=ApiConfig(
                    endpoint=f"{self.base_url}{path}",
                    method=operation.method,  # type: ignore[arg-type]
                    body_format=body.body_format,
                    anonymous=anonymous,
                ),
                input_schema=arguments.schema,
                output_schema=output_schema_of(
                    self.document, self.outputs, raw.get("responses"), f"{at}/responses"
                ),
                # Hardly any API answers just as its document says.
                output_is_promised=False,
                field_mappings=FieldMappings(
                    input=arguments.places, constants=constants + read.constants + body.constants
                ),
            )
        except ValidationError as error:
            raise NoTool(_in_words(error)) from None

    def _description(self, operation: Operation) -> str:
        """With the name of the API, and where others are described alike with what tells them apart."""
        call = f"{operation.method} {operation.path}"
        told = description_of(operation.raw.get("summary"), operation.raw.get("description"), otherwise=call)
        api = plain_text(self.document.title, LONGEST_API) or urlsplit(self.base_url).hostname or ""
        is_shared = self.descriptions[_words_of(operation)] > 1 and call not in told
        said = [api] if api.casefold() not in told.casefold() else []
        said += [call] if is_shared else []
        return f"{told}\n\nAPI: {', '.join(said)}" if said else told

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


def _words_of(operation: Operation) -> tuple[str, str]:
    return str(operation.raw.get("summary")), str(operation.raw.get("description"))


def _is_empty(bodies: Bodies, raw: object, pointer: str) -> bool:
    """One that cannot be read is not."""
    try:
        return bodies.is_empty(raw, pointer)
    except NoTool:
        return False


def _in_words(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    return f"It makes no tool: {'.'.join(map(str, problem['loc']))}: {problem['msg']}."
