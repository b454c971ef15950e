"""HTTP tools declared here: storing, replacing and removing them, each submission in one transaction."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import pydantic
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from pydantic import Field

from catalogue.actions.sources import create_source
from catalogue.connections import find_setting_problems
from catalogue.database import in_batches
from catalogue.drift import describe_differences, find_differences
from catalogue.exposure import FILTERED_FIELDS, enabled_filters
from catalogue.history import Actor, record_change
from catalogue.http_tools import KIND, authentication_of, why_hidden
from catalogue.imports.pipeline import ToolsRefused, policy_for_new, stored_secrets
from catalogue.models import DiscoveryRun, Revision, Source, Workflow
from catalogue.naming import make_tool_name
from catalogue.reconciliation import Change, Listing, layer_of, plan_changes, read_listing, reconcile
from catalogue.schemas import find_schema_problem
from connectors.definitions import OUTPUT_SCHEMA, WorkflowDefinition
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.formats.json_schema import pointer_of
from connectors.formats.yaml import UnusableText, read_document
from connectors.http_tools.checks import definition_of
from connectors.http_tools.tool import (
    EXTRA_KEYS,
    SETTINGS,
    Authentication,
    Connection,
    Declaration,
    InvalidTool,
    ToolConfig,
    ValidationProblem,
    connection_of,
    path_below,
)

SHOWN_STEP = 100
MAX_BYTES = 4_194_304  # Of JSON; a quarter of it for YAML, which takes longer to read


class ToolSubmission(Declaration):
    """Tools, and what to do with them."""

    tools: list[ToolConfig] = Field(min_length=1, max_length=1_000)
    source: str | None = Field(default=None, min_length=1, max_length=64)
    """A source of HTTP tools that they belong to, or the name of a new one. Left out: their addresses and
    authentication decide, and where no source fits, one named after the host is added."""
    expose: bool = True
    """Whether agents see new tools at once, filters permitting."""
    dry_run: bool = False
    """Store nothing, show what would change."""


BESIDE = [[name] for name in ToolSubmission.model_fields if name != "tools"]  # Keys beside the tools


def read_text(content: bytes) -> Any:
    """Parse JSON or YAML. Raises ToolsRefused."""
    if len(content) > MAX_BYTES:
        raise ToolsRefused([ValidationProblem("", f"The text is larger than {MAX_BYTES:,} bytes.")])
    try:
        if content.lstrip()[:1] in (b"{", b"["):
            return parse_json(content)
        document = read_document(content)
    except (UnreadableJSON, UnusableText) as error:
        raise ToolsRefused([ValidationProblem("", str(error))]) from None
    if document.problems:
        raise ToolsRefused(ValidationProblem("", str(problem)) for problem in document.problems)
    return document.value


def read_submission(raw: Any) -> ToolSubmission:
    """Raises ToolsRefused with all faults."""
    written = raw if _is_whole(raw) else {"tools": raw if isinstance(raw, list) else [raw]}
    try:
        return ToolSubmission.model_validate(written)
    except pydantic.ValidationError as error:
        raise ToolsRefused(_faults(error, written)) from None


def read_tool(raw: Any) -> ToolConfig:
    return read_submission({"tools": [raw]}).tools[0]


def place_of(fault: ValidationProblem, raw: Any) -> str:
    """JSON Pointer to the fault in the submission."""
    if fault.position is None:
        return fault.path if _is_whole(raw) else ""
    if isinstance(raw, list):
        return f"/{fault.position}{fault.path}"
    return f"/tools/{fault.position}{fault.path}" if _is_whole(raw) else fault.path


def name_of(fault: ValidationProblem, raw: Any) -> str:
    """The name of the faulty tool among several; empty if there is one tool or it has no name."""
    tools = raw["tools"] if _is_whole(raw) else raw
    tool = tools[fault.position] if isinstance(tools, list) and fault.position is not None else None
    name = tool.get("name") if isinstance(tool, dict) else None
    return name[:SHOWN_STEP] if isinstance(name, str) and name.isprintable() else ""


def _is_whole(raw: Any) -> bool:
    return isinstance(raw, dict) and "tools" in raw


def _faults(error: pydantic.ValidationError, written: Any) -> Iterator[ValidationProblem]:
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        steps = list(_steps_of(problem["loc"], written, is_absent=problem["type"] == "missing"))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden" and steps[2:] in BESIDE:
            message = f'Put this beside the tools: {{"{steps[2]}": ..., "tools": [...]}}.'
        if len(steps) > 1 and steps[0] == "tools":
            yield ValidationProblem(pointer_of(steps[2:]), message, int(steps[1]))
        else:
            yield ValidationProblem(pointer_of(steps), message)


def _steps_of(loc: tuple[str | int, ...], written: Any, *, is_absent: bool) -> Iterator[str]:
    """The steps that exist in the submission; Pydantic adds the alternatives of unions in between."""
    for position, part in enumerate(loc):
        in_list = isinstance(written, list) and isinstance(part, int)
        if in_list or (isinstance(written, dict) and part in written):
            written = written[part]
            yield str(part)[:SHOWN_STEP]
        elif is_absent and position == len(loc) - 1:
            yield str(part)[:SHOWN_STEP]


@dataclass(kw_only=True, slots=True)
class TargetSource:
    source: Source | None  # None for a new source
    name: str
    base_url: str
    settings: dict[str, Any]
    secrets: dict[str, str] = field(repr=False)  # Of its authentication
    positions: list[int] = field(default_factory=list)  # Indexes of its tools in the submission


def find_targets(
    tools: Sequence[ToolConfig], *, source: str | None
) -> tuple[list[TargetSource], list[ValidationProblem]]:
    """Find or plan the source of each tool; faults are returned for the tools without one. Without a named
    source, a tool goes to the source whose address its endpoint begins with and that authenticates alike; one
    that already has a tool of its name comes first. Its secrets are those of the source, or left out. Locks
    the rows of sources and writes nothing."""
    sources = list(Source.objects.select_for_update().filter(kind=KIND).order_by("name"))
    taken = set(Source.objects.values_list("name", flat=True))
    named = next((one for one in sources if one.name == source), None)
    if named is None and source in taken:
        message = f"Source {source} is of another kind: HTTP tools require a source of the kind {KIND}."
        return [], [ValidationProblem("/source", message)]
    names = {tool.name for tool in tools}
    known = Workflow.objects.filter(source__in=sources, upstream_id__in=names) if source is None else None
    stored = set() if known is None else set(known.values_list("source_id", "upstream_id"))
    targets: dict[Any, TargetSource] = {}
    faults: list[ValidationProblem] = []
    for position, tool in enumerate(tools):
        try:
            connection = connection_of(tool)
            found = named if source else _fitting_source(tool, connection, sources, stored)
            key = source or (found.pk if found else (connection.base_url, identity(tool.api.authentication)))
            if (target := targets.get(key)) is None:
                target = TargetSource(
                    source=found,
                    name=found.name if found else source or free_source_name(connection.base_url, taken),
                    base_url=address_of(found) if found else connection.base_url,
                    settings=found.config if found else connection.settings,
                    secrets=_own_secrets(found) if found else connection.secrets,
                )
            _check_connection(target, tool, connection)
        except InvalidTool as invalid:
            faults += (replace(problem, position=position) for problem in invalid.problems)
            continue
        if target.source is None:
            target.secrets = target.secrets or connection.secrets
        taken.add(target.name)
        targets.setdefault(key, target).positions.append(position)
    return list(targets.values()), faults


def _fitting_source(
    tool: ToolConfig, connection: Connection, sources: list[Source], stored: set[tuple[int, str]]
) -> Source | None:
    """`stored`: keys of sources with the names of their tools. Raises InvalidTool if several sources fit."""
    fitting = [source for source in sources if fits(source, tool)]
    if fitting and connection.secrets:
        owners = [source for source in fitting if _own_secrets(source) == connection.secrets]
        fitting = owners or fitting[:1]  # The first does not accept the secrets
    closest = max((len(address_of(source)) for source in fitting), default=0)
    best = [source for source in fitting if (source.pk, tool.name) in stored] or [
        source for source in fitting if len(address_of(source)) == closest
    ]
    if len(best) > 1:
        names = ", ".join(source.name for source in best)
        advice = 'Name one: send {"source": ..., "tools": [...]}, or use `add_tools --source`.'
        raise InvalidTool([ValidationProblem("", f"It may belong to several sources ({names}). {advice}")])
    return best[0] if best else None


def fits(source: Source, tool: ToolConfig) -> bool:
    try:
        path_below(address_of(source), tool.api.endpoint)
    except ValueError:
        return False
    return identity(authentication_of(source.config)) == identity(tool.api.authentication)


def _check_connection(target: TargetSource, tool: ToolConfig, connection: Connection) -> None:
    """All tools of a source share its API and its authentication. They may omit its secrets, but not give
    different ones. The endpoint is compared with the base URL of a present source later. Raises
    InvalidTool."""
    authentication = tool.api.authentication
    if target.source is None and connection.base_url != target.base_url:
        path = "/api/endpoint"
        message = f"A source has one API: this tool is not at {target.base_url}, unlike the first one."
    elif "authentication" in tool.api.model_fields_set and (
        identity(authentication_of(target.settings)) != identity(authentication)
    ):
        path = "/api/authentication"
        message = f"Source {target.name} authenticates in another way; leave this out to use its own."
    elif connection.secrets not in ({}, target.secrets) and (target.source or target.secrets):
        path = f"/api/authentication/{authentication.secret}"
        message = (
            f"Source {target.name} of this API has a different one, which its other tools use. Omit it to "
            'use that, change it at the source, or name a new source: {"source": ..., "tools": [...]}, or '
            "`add_tools --source`."
        )
    else:
        return
    raise InvalidTool([ValidationProblem(path, message)])


def identity(authentication: Authentication) -> tuple[tuple[str, str], ...]:
    """The authentication without its secret."""
    claims = authentication.model_dump(by_alias=True, exclude={authentication.secret})
    if claims.get("in") == "header":
        claims["name"] = claims["name"].lower()
    if "token_url" in claims:
        claims["token_url"] = claims["token_url"].strip().rstrip("/")
    return tuple(sorted(claims.items()))


def address_of(source: Source) -> str:
    return str(source.config.get("base_url", ""))


def _own_secrets(source: Source) -> dict[str, str]:
    """Those of its authentication; a declaration cannot name its extra keys."""
    stored = stored_secrets(source).items()
    return {name: secret for name, secret in stored if secret and name not in EXTRA_KEYS}


def free_source_name(base_url: str, taken: Set[str]) -> str:
    """The API's host, numbered if another source has that name; of at most 64 characters."""
    host = re.sub(r"[^A-Za-z0-9_.-]+", "-", urlsplit(base_url).hostname or "")
    stem, number = host.lstrip("-_.")[:60] or "api", 2
    name = stem
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name


OF_AUTHENTICATION = {setting: name for name, setting in SETTINGS.items()}
PLACES = {"name": "/source", "base_url": "/api/endpoint"} | {
    setting: f"/api/authentication/{OF_AUTHENTICATION.get(setting, setting)}"
    for setting in (*OF_AUTHENTICATION, "token", "username", "password")
}  # Of the values of a source's settings in a submission


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolChange:
    tool_id: str  # Its name as a tool: unique and permanent
    name: str
    source: str
    change: Change
    hidden_because: str  # Empty for an exposed tool
    note: str = ""
    differences: str = ""  # Of an updated tool
    warning: str = ""  # Excerpts of new texts that may be instructions to agents

    @property
    def exposed(self) -> bool:
        return not self.hidden_because


@dataclass(kw_only=True, slots=True)
class StoredTools:
    tools: list[ToolChange] = field(default_factory=list)  # In the submission's order, then removed ones
    new_sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    dry_run: bool = False


def read_definitions(
    definitions: Mapping[str, WorkflowDefinition],
) -> tuple[dict[str, dict[str, Any]], dict[str, list[ValidationProblem]]]:
    """By their ids: the layers of those without a fault, and the faults of the others. An author can correct
    a declaration, so nothing of it is replaced or left out silently."""
    listing, faults = read_listing(definitions.values()), defaultdict[str, list[ValidationProblem]](list)
    for one in (*listing.skipped, *listing.flagged):
        faults[one["id"]].append(ValidationProblem("/input_schema", one["reason"]))
    for name, layer in listing.layers.items():
        # A listing drops an output schema that is not valid, and does not look at one in the metadata.
        dropped = definitions[name].output_schema if layer["output_schema"] is None else None
        schema = layer["metadata"].get(OUTPUT_SCHEMA, dropped)
        if schema is not None and (problem := find_schema_problem(schema)):
            message = f"This cannot be used as JSON Schema: {problem}"
            faults[name].append(ValidationProblem("/output_schema", message))
    return {name: layer for name, layer in listing.layers.items() if name not in faults}, faults


def store_layers(
    source: Source, layers: dict[str, dict[str, Any]], *, expose: bool, prune: bool, by: Actor | None
) -> list[ToolChange]:
    """The tools in their order, then removed ones. Call it in a transaction that holds `Revision.lock`."""
    listing = Listing(layers)
    changes = plan_changes(source, listing)
    if not prune:
        changes = {name: change for name, change in changes.items() if change is not Change.REMOVED}
    updated = [name for name, change in changes.items() if change is Change.UPDATED]
    compared: dict[str, tuple[str, str]] = {}  # The differences and the warning
    for names in in_batches(updated, 500):
        for row in source.workflows.filter(upstream_id__in=names):
            found = find_differences(layer_of(row), layers[row.upstream_id])
            warnings = dict.fromkeys(one.warning for one in found if one.warning)
            compared[row.upstream_id] = describe_differences(found), ", ".join(warnings)
    added: list[Workflow] = []
    if {*changes.values()} - {Change.UNCHANGED}:
        run = DiscoveryRun.objects.create(source=source, trigger=DiscoveryRun.Trigger.MANUAL)
        added = reconcile(source, listing, run, is_whole=prune, enable=expose, by_hand=True, by=by)
        run.finish(outcome=DiscoveryRun.Outcome.SUCCEEDED)
        # The declaration is the listing, also while the API is unreachable.
        Source.objects.filter(pk=source.pk).update(last_refreshed_at=timezone.now())
    known = {workflow.upstream_id: workflow for workflow in added}
    others = Workflow.objects.filter(source=source, upstream_id__in=changes.keys() - known.keys())
    known |= {workflow.upstream_id: workflow for workflow in others.only(*FILTERED_FIELDS)}
    chain, told = enabled_filters(), []
    for name, change in changes.items():
        workflow, note = known[name], ""
        workflow.source = source
        if change is Change.ADDED:
            wanted = make_tool_name(
                name=workflow.name, upstream_id=name, source_name=source.name, taken=set()
            )
            if workflow.tool_name != wanted:
                note = f"The id {wanted} already belongs to another tool."
        differences, warning = compared.get(name, ("", ""))
        told.append(
            ToolChange(
                tool_id=workflow.tool_name,
                name=name,
                source=source.name,
                change=change,
                hidden_because=why_hidden(workflow, chain),
                note=note,
                differences=differences,
                warning=warning,
            )
        )
    return told


def _read_tools(
    target: TargetSource, tools: Sequence[ToolConfig], faults: list[ValidationProblem]
) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    """Layers and positions of the source's tools, by their names. Their faults are appended to `faults`."""
    definitions: dict[str, WorkflowDefinition] = {}
    position_of: dict[str, int] = {}
    for position in target.positions:
        try:
            definition = definition_of(tools[position], base_url=target.base_url)
        except InvalidTool as invalid:
            faults += (replace(problem, position=position) for problem in invalid.problems)
            continue
        if definitions.setdefault(definition.id, definition) is not definition:
            message = f"Tool {position_of[definition.id]} of this submission has the same name."
            faults.append(ValidationProblem("/name", message, position))
        position_of.setdefault(definition.id, position)
    layers, problems = read_definitions(definitions)
    for name, of_tool in problems.items():
        faults += (replace(problem, position=position_of[name]) for problem in of_tool)
    return layers, position_of


def _create(target: TargetSource, stored: StoredTools, *, expose: bool, by: Actor | None) -> Source:
    """Raises ToolsRefused if the source would be invalid."""
    config = {"base_url": target.base_url} | target.settings
    if problems := find_setting_problems(KIND, config | target.secrets):
        raise ToolsRefused(_setting_faults(target, problems, otherwise="/api/authentication"))
    try:
        source = create_source(
            name=target.name,
            kind=KIND,
            config=config,
            credentials=target.secrets,
            new_workflows=policy_for_new(expose=expose),
        )
    except ValidationError as error:
        raise ToolsRefused(_setting_faults(target, error.message_dict, otherwise="/api/endpoint")) from None
    stored.new_sources.append(source.name)
    if by is not None:
        record_change(by, [source], "Added with its first tool.")
    if (secret := authentication_of(config).secret) and not target.secrets:
        missing = f"Source {source.name} has no {secret.replace('_', ' ')} yet"
        stored.notes.append(f"{missing}: enter it there before its tools are called.")
    return source


def _setting_faults(
    target: TargetSource, problems: dict[str, list[str]], *, otherwise: str
) -> Iterator[ValidationProblem]:
    """Faults in a new source's name or settings, these reported at the first tool that brings them."""
    for setting, messages in problems.items():
        path = PLACES.get(setting, otherwise)
        position = None if setting == "name" else target.positions[0]
        yield from (ValidationProblem(path, message, position) for message in messages)


def store_tools(
    tools: Sequence[ToolConfig],
    *,
    source: str | None = None,
    expose: bool,
    prune: bool = False,
    may_add_source: bool = True,
    dry_run: bool = False,
    by: Actor | None = None,
) -> StoredTools:
    """Add the tools, or update existing ones to match. Raises ToolsRefused, and stores nothing then. `source`
    names an existing or a new source; without it the tools' addresses decide. `expose` enables new tools.
    `prune` removes the other tools of the named source.
    `may_add_source` is the caller's permission to add a source. `by` is the actor in the history."""
    if prune and source is None:
        raise ValueError("Pruning requires the name of a source.")
    with transaction.atomic():
        Revision.lock()
        targets, faults = find_targets(tools, source=source)
        if not may_add_source:
            needed = "adding one requires catalogue.add_source."
            faults += [
                ValidationProblem(
                    "/api/endpoint", f"No source fits {one.base_url}; {needed}", one.positions[0]
                )
                for one in targets
                if one.source is None
            ]
        read = [_read_tools(target, tools, faults) for target in targets]
        if faults:
            raise ToolsRefused(faults)
        stored, positions = StoredTools(dry_run=dry_run), dict[tuple[str, str], int]()
        for target, (layers, position_of) in zip(targets, read, strict=True):
            into = target.source or _create(target, stored, expose=expose, by=by)
            stored.tools += store_layers(into, layers, expose=expose, prune=prune, by=by)
            positions |= {(into.name, name): position for name, position in position_of.items()}
        stored.tools.sort(key=lambda tool: positions.get((tool.source, tool.name), len(tools)))
        if dry_run:
            transaction.set_rollback(True)
    return stored


def replace_tool(workflow: Workflow, tool: ToolConfig, *, by: Actor | None = None) -> StoredTools:
    """Change a tool; it keeps its name, its source and its id. Raises ToolsRefused."""
    with transaction.atomic():
        Revision.lock()
        present = Workflow.objects.present().select_related("source").filter(pk=workflow.pk).first()
        if present is None:
            raise ToolsRefused([ValidationProblem("", f"The tool {workflow.tool_name} no longer exists.")])
        if tool.name != present.upstream_id:
            message = f"The tool's name is {present.upstream_id}. To use another name, submit another tool."
            raise ToolsRefused([ValidationProblem("/name", message, 0)])
        name = present.source.name
        return store_tools([tool], source=name, expose=present.enabled, may_add_source=False, by=by)


def remove_tool(workflow: Workflow) -> None:
    """Its executions stay; stored again, it gets its id back. Raises ValueError for other workflows."""
    if workflow.source.kind != KIND:
        raise ValueError(f"{workflow.tool_name} is not an HTTP tool")
    with transaction.atomic():
        Revision.lock()
        present = Workflow.objects.present().filter(pk=workflow.pk)
        if present.update(missing_since=timezone.now()):
            run = DiscoveryRun(source_id=workflow.source_id, trigger=DiscoveryRun.Trigger.MANUAL, missing=1)
            run.save()
            run.finish(outcome=DiscoveryRun.Outcome.SUCCEEDED)
            Revision.bump()
