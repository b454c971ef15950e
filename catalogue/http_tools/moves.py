"""What a submission of tools means for one source, and what came of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from django.core.exceptions import ValidationError
from django.utils import timezone

from catalogue.changes import Change, foresee_changes
from catalogue.connections import find_setting_problems
from catalogue.exposure import Visibility, explain_exposure
from catalogue.filters import FilterChain
from catalogue.history import Actor, record_change
from catalogue.http_tools.configs import KIND, OUTPUT_SCHEMA, SECRET_OF, authentication_of
from catalogue.http_tools.refusals import ToolFault, ToolsRefused, faults_of
from catalogue.http_tools.sources import Home
from catalogue.models import DiscoveryRun, Source, Workflow, WorkflowFilter
from catalogue.naming import make_tool_name
from catalogue.reconciliation import Listing, read_listing, reconcile
from catalogue.schemas import find_schema_problem
from catalogue.sources import create_source
from connectors.definitions import WorkflowDefinition
from connectors.http_tools.checks import InvalidTool, ToolProblem, definition_of
from connectors.http_tools.tool import ToolConfig

SETTING_PLACES = {
    "base_url": "/api/endpoint",
    "api_key": "/api/authentication/key",
    "api_key_name": "/api/authentication/name",
    "token": "/api/authentication/token",
    "username": "/api/authentication/username",
    "password": "/api/authentication/password",
    "oauth_token_url": "/api/authentication/token_url",
    "oauth_client_id": "/api/authentication/client_id",
    "oauth_client_secret": "/api/authentication/client_secret",
}
"""Where a ToolConfig says what a source's setting says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolChange:
    """What became of one tool."""

    tool_id: str
    """Its name as a tool: unique, and its id for ever."""
    name: str
    """As declared."""
    source: str
    change: Change
    exposed: bool = False
    hidden_because: str = ""
    """Why agents do not see it; empty where they do."""
    note: str = ""
    """What else there is to know."""
    position: int | None = None
    """Which of the submission's tools it is; None for one that is removed."""


@dataclass(kw_only=True, slots=True)
class StoredTools:
    """What a submission came to, or would come to."""

    tools: list[ToolChange] = field(default_factory=list)
    """In the order of the submission; after them those that are removed."""
    new_sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    dry_run: bool = False
    """Whether nothing was stored."""

    @property
    def has_new(self) -> bool:
        return any(tool.change is Change.ADDED for tool in self.tools)


@dataclass(slots=True)
class Move:
    """A source with the tools that it is to get. Write in a transaction that holds `Revision.lock`."""

    home: Home
    listing: Listing
    position_of: dict[str, int]
    """By the tools' names."""

    @classmethod
    def of(cls, home: Home, tools: Sequence[ToolConfig], faults: list[ToolFault]) -> Self:
        """What is wrong with the home's tools goes to the faults."""
        definitions: dict[str, WorkflowDefinition] = {}
        position_of: dict[str, int] = {}
        for position in home.positions:
            try:
                definition = _definition_of(tools[position], base_url=home.base_url)
            except InvalidTool as invalid:
                faults += faults_of(invalid, position)
                continue
            if definitions.setdefault(definition.id, definition) is not definition:
                told = f"Tool {position_of[definition.id]} of this submission has the same name."
                faults.append(ToolFault(position=position, path="/name", message=told))
            position_of.setdefault(definition.id, position)
        listing = read_listing(definitions.values())
        # A tool that is declared here is mended here: nothing of it is replaced or left out in silence.
        faults += [
            ToolFault(position=position_of[problem["id"]], path="/input_schema", message=problem["reason"])
            for problem in (*listing.skipped, *listing.flagged)
        ]
        faults += [
            fault
            for name, tool in definitions.items()
            for fault in _output_faults(listing, tool, position_of[name])
        ]
        return cls(home, listing, position_of)

    def carry_out(
        self, stored: StoredTools, *, expose: bool, prune: bool, replace: bool, by: Actor | None
    ) -> None:
        """Raises ToolsRefused for a new source that cannot be."""
        source = self.home.source or self._create(stored, expose=expose, by=by)
        changes = foresee_changes(source, self.listing)
        if not replace:
            self._keep(changes)
        if not prune:
            changes = {name: change for name, change in changes.items() if change is not Change.REMOVED}
        if {*changes.values()} - {Change.UNCHANGED, Change.KEPT}:
            self._reconcile(source, expose=expose, prune=prune, by=by)
        stored.tools += self._tell(source, changes)

    def _create(self, stored: StoredTools, *, expose: bool, by: Actor | None) -> Source:
        home, policies = self.home, Source.NewWorkflows
        config = {"base_url": home.base_url} | home.settings
        problems = find_setting_problems(KIND, config | home.secrets)
        if faults := list(self._faults(problems)):
            raise ToolsRefused(faults)
        try:
            source = create_source(
                name=home.name,
                kind=KIND,
                config=config,
                credentials=home.secrets,
                new_workflows=policies.EXPOSED if expose else policies.HIDDEN,
            )
        except ValidationError as error:
            raise ToolsRefused(self._settings_faults(error)) from None
        stored.new_sources.append(source.name)
        if by is not None:
            record_change(by, [source], "Added with its first tool.")
        stored.notes += _missing_secret(source.name, config, home.secrets)
        return source

    def _faults(self, problems: dict[str, list[str]]) -> Iterator[ToolFault]:
        """Of a new source's settings, told at the first tool that brings them."""
        for setting, messages in problems.items():
            path = SETTING_PLACES.get(setting, "/api/authentication")
            for message in messages:
                yield ToolFault(position=self.home.positions[0], path=path, message=message)

    def _settings_faults(self, error: ValidationError) -> Iterator[ToolFault]:
        """Of a new source as a whole: of its name, or of an address that must not be contacted."""
        for setting, messages in error.message_dict.items():
            for message in messages:
                if setting == "name":
                    yield ToolFault(path="/source", message=message)
                else:
                    yield ToolFault(position=self.home.positions[0], path="/api/endpoint", message=message)

    def _keep(self, changes: dict[str, Change]) -> None:
        for name, change in changes.items():
            if change is Change.UPDATED:
                changes[name] = Change.KEPT
                del self.listing.layers[name]

    def _reconcile(self, source: Source, *, expose: bool, prune: bool, by: Actor | None) -> None:
        run = DiscoveryRun.objects.create(source=source, trigger=DiscoveryRun.Trigger.MANUAL)
        reconcile(source, self.listing, run, is_whole=prune, enable=expose, by_hand=True, by=by)
        run.finish(outcome=DiscoveryRun.Outcome.SUCCEEDED)
        # What the source offers is known, also while its API is not reached.
        Source.objects.filter(pk=source.pk).update(last_refreshed_at=timezone.now())

    def _tell(self, source: Source, changes: dict[str, Change]) -> Iterator[ToolChange]:
        workflows = Workflow.objects.filter(source=source, upstream_id__in=changes).for_lists()
        known = {workflow.upstream_id: workflow for workflow in workflows}
        chain = FilterChain(WorkflowFilter.objects.filter(enabled=True))
        for name, change in changes.items():
            workflow = known[name]
            workflow.source = source
            visibility = explain_exposure(workflow, chain).visibility
            exposed = visibility is Visibility.EXPOSED
            yield ToolChange(
                tool_id=workflow.tool_name,
                name=name,
                source=source.name,
                change=change,
                exposed=exposed,
                hidden_because="" if exposed else visibility.value,
                note=_note(workflow, change),
                position=self.position_of.get(name),
            )


def _definition_of(tool: ToolConfig, *, base_url: str) -> WorkflowDefinition:
    """Raises InvalidTool."""
    definition, schema = definition_of(tool, base_url=base_url), tool.output_schema
    # That of an object is looked at when the listing is read.
    if schema is None or schema.get("type") == "object":
        return definition
    if problem := find_schema_problem(schema):
        raise InvalidTool([_unusable_output(problem)])
    # MCP promises its clients objects only; whoever reads the tool is told of the list all the same.
    metadata = definition.metadata | {OUTPUT_SCHEMA: schema}
    return definition.model_copy(update={"output_schema": None, "metadata": metadata})


def _output_faults(listing: Listing, tool: WorkflowDefinition, position: int) -> list[ToolFault]:
    """That the promised output is no JSON Schema, which engines are forgiven."""
    layer = listing.layers.get(tool.id)
    if tool.output_schema is None or layer is None or layer["output_schema"] is not None:
        return []
    problem = _unusable_output(find_schema_problem(tool.output_schema))
    return faults_of(InvalidTool([problem]), position)


def _unusable_output(problem: str) -> ToolProblem:
    return ToolProblem("/output_schema", f"This cannot be used as JSON Schema: {problem}")


def _missing_secret(name: str, config: dict[str, Any], secrets: dict[str, str]) -> Iterator[str]:
    secret = SECRET_OF.get(authentication_of(config).type)
    if secret and not secrets:
        told = secret.replace("_", " ")
        yield f"Source {name} has no {told} yet: enter it there before its tools are called."


def _note(workflow: Workflow, change: Change) -> str:
    """That it could not be called what it would have been called."""
    wanted = make_tool_name(
        name=workflow.name,
        upstream_id=workflow.upstream_id,
        source_name=workflow.source.name,
        taken=set(),
    )
    if change is not Change.ADDED or workflow.tool_name == wanted:
        return ""
    return f"The id {wanted} belongs to another tool already."
