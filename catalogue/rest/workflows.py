from functools import cached_property
from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import Http404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError as InvalidRequest
from rest_framework.request import Request
from rest_framework.response import Response

from access.callers import Scope
from access.permissions import Access, admin_access, bounds_of, is_administrator
from catalogue import tables
from catalogue.actions import workflows as actions
from catalogue.approval_rules import COMPARISONS, MAX_RULES
from catalogue.argument_overrides import MAX_DESCRIPTION
from catalogue.configuration import WORKFLOW, name_in_file
from catalogue.exposure import (
    Explanation,
    FilterChain,
    Visibility,
    confirmed_catalogue,
    enabled_filters,
    explain_exposure,
)
from catalogue.history import actor_of, changed_fields
from catalogue.long_lists import KeyPaginator
from catalogue.models import Review, Source, Workflow, WorkflowFilter
from catalogue.presentation import CURATORS_HINTS, MAX_ICON_CHARACTERS
from catalogue.rest.base import (
    MAX_LIMIT,
    ChosenFilter,
    JSONObjectField,
    Pages,
    Problem,
    Refusal,
    RowSerializer,
    SearchFilter,
    StableOrdering,
    StrictBooleanFilter,
    StrictSerializer,
    StringListField,
    as_problem,
    rename,
)
from catalogue.rest.views import FORMAT, NAME, TableMixin
from catalogue.search_terms import parse_search, search_workflows
from connectors.formats.lists import split_list

MAX_NAMES = 10_000
ADMINISTRATORS_ONLY = "Null for callers that are not administrators."
HINTS = {"type": "object", "properties": {name: {"type": "boolean"} for name in CURATORS_HINTS.values()}}


@extend_schema_field(HINTS)
class HintsField(serializers.DictField):
    """MCP's hints, as far as the engine or a curator gives them."""


class IconSerializer(serializers.Serializer[Any]):
    """An icon as MCP has it; the other members only where the engine gave them."""

    src = serializers.CharField(help_text="An https: or data:image/ address.")
    mimeType = serializers.CharField(required=False)  # noqa: N815 - MCP's own name
    sizes = StringListField(required=False)
    theme = serializers.ChoiceField(choices=["light", "dark"], required=False)


class LayerMixin:
    context: dict[str, Any]

    def get_attribute(self, instance: Workflow) -> Workflow | None:
        return instance if is_administrator(self.context["request"]) else None


class UpstreamSerializer(LayerMixin, RowSerializer[Workflow]):
    """What the engine says of a workflow."""

    id = serializers.CharField(source="upstream_id", help_text="The engine's id.")
    tags = StringListField()

    class Meta:
        model = Workflow
        fields: tuple[str, ...] = (
            "id", "name", "description", "category", "version", "author", "tags", "execution_type",
            "resembles", "warning", "first_seen_at", "changed_at", "missing_since",
        )  # fmt: skip


class InteractionSerializer(serializers.Serializer[Any]):
    """A query or a signal of running executions."""

    name = serializers.CharField()
    description = serializers.CharField()
    inputSchema = JSONObjectField()  # noqa: N815 - as MCP has it


class UpstreamDetailSerializer(UpstreamSerializer):
    """What the engine says of a workflow, in full."""

    hints = HintsField()
    icons = IconSerializer(many=True)
    queries = InteractionSerializer(many=True, help_text="Queries that its runs answer.")
    signals = InteractionSerializer(many=True, help_text="Signals that its runs accept.")
    metadata = JSONObjectField()

    class Meta(UpstreamSerializer.Meta):
        fields = (
            *UpstreamSerializer.Meta.fields,
            *("hints", "icons", "queries", "signals", "metadata", "schema_problem", "content_hash"),
        )


NOT_IN_LISTS = ("tool_name", "argument_overrides", "icon")


class CuratorSerializer(LayerMixin, RowSerializer[Workflow]):
    """The curator's decisions; empty or null where the engine's value or the product's default applies."""

    tags = StringListField(source="tags_override", allow_null=True)
    execution_type = serializers.ChoiceField(
        source="execution_type_override", choices=Workflow.ExecutionType.choices, allow_blank=True
    )
    approval_rules = serializers.ListField(child=JSONObjectField())

    class Meta:
        model = Workflow
        fields: tuple[str, ...] = (
            "enabled",
            *(name for name in map(name_in_file, actions.OVERRIDABLE) if name not in NOT_IN_LISTS),
        )
        extra_kwargs = rename(WORKFLOW.names)


class CuratorDetailSerializer(CuratorSerializer):
    """The curator's decisions, in full."""

    argument_overrides = serializers.DictField(child=JSONObjectField(), help_text="By the argument's name.")
    argument_problems = serializers.DictField(
        child=serializers.CharField(), help_text="Overrides that no longer fit the engine's schema."
    )
    approval_rule_problems = StringListField(
        help_text="Rules that no longer fit the engine's schema; each call waits for approval then."
    )
    former_tool_names = StringListField(help_text="The last name first.")
    aliases = serializers.DictField(
        child=serializers.DateTimeField(),
        source="live_aliases",
        help_text="The former names by which calls still run, and until when.",
    )

    class Meta(CuratorSerializer.Meta):
        fields = (
            *CuratorSerializer.Meta.fields, "icon", "argument_overrides", "argument_problems",
            "approval_rule_problems", "former_tool_names", "aliases",
        )  # fmt: skip


class WorkflowSerializer(RowSerializer[Workflow]):
    """What agents see, and for administrators the two layers behind it."""

    source = serializers.CharField(source="source.name")  # type: ignore[assignment]
    execution_type = serializers.ChoiceField(
        source="effective_execution_type", choices=Workflow.ExecutionType.choices
    )
    hints = HintsField(source="effective_hints", help_text="The effective hints that clients get.")
    exposed = serializers.SerializerMethodField(help_text="Whether agents see it and may call it.")
    visibility = serializers.SerializerMethodField(help_text="If it is not exposed, the first reason.")
    curator = CuratorSerializer(source="*", read_only=True, allow_null=True, help_text=ADMINISTRATORS_ONLY)
    upstream = UpstreamSerializer(source="*", read_only=True, allow_null=True, help_text=ADMINISTRATORS_ONLY)

    class Meta:
        model = Workflow
        fields: tuple[str, ...] = (
            "tool_name", "source", "title", "description", "tags", "category", "version", "execution_type",
            "hints", "offered_as_prompt", "cache_seconds", "exposed", "visibility", "curator", "upstream",
        )  # fmt: skip
        extra_kwargs = rename(
            {
                "description": "shown_description",
                "tags": "shown_tags",
                "cache_seconds": "effective_cache_seconds",
            }
        )

    def get_exposed(self, workflow: Workflow) -> bool:
        return self._explanation(workflow).is_exposed

    @extend_schema_field(serializers.ChoiceField(choices=[visibility.value for visibility in Visibility]))
    def get_visibility(self, workflow: Workflow) -> str:
        return self._explanation(workflow).visibility.value

    @cached_property
    def _chain(self) -> FilterChain[WorkflowFilter]:
        return enabled_filters()

    def _explanation(self, workflow: Workflow) -> Explanation:
        return explain_exposure(workflow, self._chain)


tables.serializers[Workflow] = WorkflowSerializer


class WorkflowDetailSerializer(WorkflowSerializer):
    """A workflow in full."""

    input_schema = JSONObjectField(
        source="whole_input_schema", help_text="JSON Schema against which arguments are validated."
    )
    output_schema = JSONObjectField(
        source="whole_output_schema",
        allow_null=True,
        help_text="JSON Schema of results, if the engine guarantees one.",
    )
    icons = IconSerializer(many=True, source="shown_icons")
    curator = CuratorDetailSerializer(
        source="*", read_only=True, allow_null=True, help_text=ADMINISTRATORS_ONLY
    )
    upstream = UpstreamDetailSerializer(
        source="*", read_only=True, allow_null=True, help_text=ADMINISTRATORS_ONLY
    )

    class Meta(WorkflowSerializer.Meta):
        fields = (*WorkflowSerializer.Meta.fields, "input_schema", "output_schema", "icons")


class ArgumentOverrideSerializer(StrictSerializer):
    """The description, and the constant or default, of one argument."""

    description = serializers.CharField(
        required=False, max_length=MAX_DESCRIPTION, help_text="Shown instead of the engine's."
    )
    constant = serializers.JSONField(
        required=False,
        allow_null=True,
        help_text="The value that each call sends. Agents do not see the argument and cannot set it.",
    )
    default = serializers.JSONField(
        required=False, allow_null=True, help_text="The value that is sent if a call omits the argument."
    )


class ApprovalRuleSerializer(StrictSerializer):
    """A call with a matching argument waits for approval."""

    argument = serializers.CharField(
        max_length=500, help_text="JSON Pointer, such as `/amount`; `/items/*/price` is each item's."
    )
    vars()["is"] = serializers.ChoiceField(choices=list(COMPARISONS))
    value = serializers.JSONField(
        allow_null=True, help_text="A number, string, boolean or null; a list for `one_of` and `none_of`."
    )


class OverridesSerializer(StrictSerializer, serializers.ModelSerializer[Workflow]):
    """The curator's overrides; an empty string or null restores the engine's value or the default."""

    tool_name = serializers.CharField(max_length=64, help_text="What agents call.")
    alias_days = serializers.IntegerField(
        min_value=0,
        max_value=actions.MAX_ALIAS_DAYS,
        help_text="Days for which calls by the old name still run when `tool_name` changes; by default they "
        "are refused immediately, with the new name. If the name stays, this applies to the last old name.",
    )
    tags = serializers.ListField(
        child=serializers.CharField(max_length=100),
        source="tags_override",
        max_length=100,
        allow_null=True,
        help_text="Shown instead of the engine's tags.",
    )
    argument_overrides = serializers.DictField(
        child=ArgumentOverrideSerializer(),
        help_text="Changes to single arguments, by name; they take the place of all that there were. Not for "
        "secrets: records of runs show the values.",
    )
    approval_rules = serializers.ListField(
        child=ApprovalRuleSerializer(),
        max_length=MAX_RULES,
        help_text="Calls that wait for approval by their arguments; they take the place of all that there "
        "were. What a rule cannot judge, such as a missing argument, waits too.",
    )

    class Meta:
        model = Workflow
        fields = ("alias_days", *map(name_in_file, actions.OVERRIDABLE))
        extra_kwargs = rename(
            WORKFLOW.names,
            description={"max_length": 20_000},
            icon={"max_length": MAX_ICON_CHARACTERS},
            max_concurrent={"max_value": MAX_LIMIT},
        )


class SeenSerializer(StrictSerializer, serializers.ModelSerializer[Workflow]):
    content_hash = serializers.CharField(
        required=False, max_length=64, help_text="Of the reviewed state. Omitted: the present one."
    )

    class Meta:
        model = Workflow
        fields = ("content_hash",)


class SelectionSerializer(StrictSerializer):
    """Some or all workflows of one source."""

    source = serializers.CharField(max_length=64, help_text="The source's name.")  # type: ignore[assignment]
    names = serializers.ListField(
        child=serializers.CharField(max_length=255),
        required=False,
        min_length=1,
        max_length=MAX_NAMES,
        help_text="Tool names, workflow names or engine's ids.",
    )
    all = serializers.BooleanField(default=False, help_text="Every workflow in the engine's last good list.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["all"] == bool(attrs.get("names")):
            raise serializers.ValidationError("Give either `names` or `all: true`.")
        return attrs


class MissingSelectionSerializer(SelectionSerializer):
    all = serializers.BooleanField(
        default=False, help_text="Every workflow of the source that its engine no longer lists."
    )


class RemovedSerializer(serializers.Serializer[Any]):
    removed = serializers.IntegerField()
    listed = serializers.IntegerField(help_text="How many were kept because the engine lists them.")
    on_record = serializers.IntegerField(help_text="How many were kept because they have executions.")


class ChangedSerializer(serializers.Serializer[Any]):
    changed = serializers.IntegerField(help_text="How many were not in that state before.")


class EnabledSerializer(ChangedSerializer):
    warned = StringListField(
        required=False,
        help_text="Tool names of those with an `upstream.warning`: review their texts.",
    )


class ExposureFilters(django_filters.FilterSet):  # type: ignore[misc]
    source = django_filters.CharFilter(field_name="source__name", label="The source's name.")
    exposed = StrictBooleanFilter(method="filter_exposed", label="Agents see it and may call it.")

    def filter_exposed(self, queryset: QuerySet[Workflow], name: str, value: bool) -> QuerySet[Workflow]:
        exposed = list(confirmed_catalogue().workflows)
        return queryset.filter(tool_name__in=exposed) if value else queryset.exclude(tool_name__in=exposed)


class WorkflowFilters(ExposureFilters):
    enabled = StrictBooleanFilter(label="Enabled by a curator.")
    missing = StrictBooleanFilter(
        field_name="missing_since", lookup_expr="isnull", exclude=True, label="Gone from the engine's list."
    )
    category = django_filters.CharFilter()
    execution_type = django_filters.ChoiceFilter(
        choices=Workflow.ExecutionType.choices, method="filter_execution_type"
    )
    limited = StrictBooleanFilter(
        field_name="max_concurrent",
        lookup_expr="isnull",
        exclude=True,
        label="Has a limit of its own for concurrent runs.",
    )
    cached = ChosenFilter(Workflow.objects.cached, label="Calls may be answered with an earlier result.")
    needs_description = ChosenFilter(
        Workflow.objects.undescribed, label="Has no description, neither the engine's nor a curator's."
    )
    warned = ChosenFilter(
        lambda: Workflow.objects.exclude(warning=""),
        label="Has texts that may be instructions to agents, as `upstream.warning` says.",
    )
    review = django_filters.ChoiceFilter(
        choices=Review.Kind.choices, method="filter_review", label="Awaits review as this."
    )
    offered_as_prompt = StrictBooleanFilter(label="Clients show it to people as a command.")
    tag = SearchFilter(
        method=lambda rows, _, tag: rows.tagged(tag), label="Carries this tag, in any case of letters."
    )
    search = django_filters.CharFilter(
        validators=[parse_search],
        method=lambda rows, _, text: search_workflows(rows, text),
        label="All of these terms: a word or “exact words” in a name, description or tag; a whole name such "
        "as billing_*; tag:, source: and is:, such as is:exposed. A hyphen before a term excludes it.",
    )
    ordering = StableOrdering(
        fields=["tool_name", "name", "category", "first_seen_at", "changed_at", ("source__name", "source")]
    )

    def filter_review(self, workflows: QuerySet[Workflow], name: str, value: str) -> QuerySet[Workflow]:
        return workflows.filter(review__in=Review.objects.awaiting().filter(kind=value))

    def filter_execution_type(
        self, queryset: QuerySet[Workflow], name: str, value: str
    ) -> QuerySet[Workflow]:
        ours, engines = Q(execution_type_override=value), Q(execution_type_override="", execution_type=value)
        return queryset.filter(ours | engines)


class ToolFilters(ExposureFilters):
    ids = django_filters.CharFilter(
        method="filter_ids", label="Only these, separated by commas; each of them has to exist."
    )
    search = SearchFilter(
        method=lambda rows, _, text: rows.matching(text), label="Has this text in a name or description."
    )
    ordering = StableOrdering(
        fields=[("tool_name", "id"), ("source__name", "source"), ("changed_at", "updated_at")]
    )

    def filter_ids(self, queryset: QuerySet[Workflow], name: str, value: str) -> QuerySet[Workflow]:
        wanted = dict.fromkeys(split_list(value))
        chosen = queryset.filter(tool_name__in=wanted)
        if unknown := wanted.keys() - set(chosen.values_list("tool_name", flat=True)):
            missing = [tool_id for tool_id in wanted if tool_id in unknown]
            problems = [Problem("?ids", f"No such tool: {tool_id[:100]}") for tool_id in missing]
            raise Refusal(404, f"These tools do not exist: {', '.join(missing)[:2000]}.", errors=problems)
        return chosen


CHANGED = {
    200: ChangedSerializer,
    404: as_problem("There is no such source or workflow; nothing was changed."),
}


class WorkflowPages(Pages):
    django_paginator_class = KeyPaginator


def seen_by_caller(request: Request, workflows: QuerySet[Workflow]) -> QuerySet[Workflow]:
    """All of them for administrators, for others those that agents see."""
    if is_administrator(request):
        return workflows
    return workflows.filter(tool_name__in=list(confirmed_catalogue().seen_within(bounds_of(request))))


@extend_schema_view(
    list=extend_schema(
        parameters=[FORMAT],
        responses={
            (200, "application/json"): WorkflowSerializer(many=True),
            (200, tables.CSV): OpenApiTypes.STR,
        },
    ),
    retrieve=extend_schema(description="By its tool name, or by a former one while calls by that still run."),
)
@extend_schema(tags=["Workflows"])
class WorkflowViewSet(TableMixin[Workflow], mixins.RetrieveModelMixin):
    """Without schemas; a single workflow has them. Callers with the scope `workflows:read` see what agents
    see, administrators everything. A token that is bound to a toolset sees no more than that shows. With
    `format=csv` all of them come as one table, in which the columns `curator_...` and `upstream_...` have the
    two layers."""

    queryset = Workflow.objects.none()
    serializer_class, list_serializer_class = WorkflowDetailSerializer, WorkflowSerializer
    pagination_class = WorkflowPages
    filterset_class = WorkflowFilters
    lookup_field = "tool_name"
    lookup_value_regex = NAME
    access = {
        "list": Access(Scope.READ, "catalogue.view_workflow"),
        "retrieve": Access(Scope.READ, "catalogue.view_workflow"),
        **admin_access("catalogue.change_workflow", "partial_update", "enable", "disable"),
        **admin_access("catalogue.change_workflow", "enable_many", "disable_many", "remove_missing"),
    }

    def get_queryset(self) -> QuerySet[Workflow]:
        workflows = Workflow.objects.order_by("tool_name")
        if self.action == "list":
            # Not joined: that would make an instance of the source for each of its workflows.
            workflows = workflows.for_lists().prefetch_related("source")
        else:
            workflows = workflows.select_related("source")
        return seen_by_caller(self.request, workflows)

    def get_object(self) -> Workflow:
        """Reads accept former names while calls by them still run; changes require the present name."""
        try:
            return super().get_object()
        except Http404:
            name = self.kwargs[self.lookup_field]
            if self.action != "retrieve" or (alias := Workflow.objects.live_aliases().get(name)) is None:
                raise
            self.kwargs[self.lookup_field], _ = alias
            return super().get_object()

    @extend_schema(
        operation_id="workflows_override",
        request=OverridesSerializer(partial=True),
        examples=[
            OpenApiExample(
                "Words and a limit",
                {"title": "Count words", "tags": ["text"], "timeout_seconds": 60},
                request_only=True,
            )
        ],
    )
    @transaction.atomic
    def partial_update(self, request: Request, tool_name: str) -> Response:
        """Override what the engine says.
        Sets the curator's texts and limits. Omitted fields are unchanged. An empty string or null restores
        the engine's value or the product's default."""
        workflow = self.get_object()
        body = self.read_body(OverridesSerializer, partial=True)
        try:
            actions.override_workflow(workflow, **body)
        except ValidationError as error:
            # The model's `title_override` is the request's `title`.
            problems = {
                name.removesuffix("_override"): messages for name, messages in error.message_dict.items()
            }
            raise InvalidRequest(problems) from None
        changed = [name.removesuffix("_override") for name in body]
        self.record(changed_fields(changed), workflow)
        return self._shown(workflow)

    @extend_schema(
        request=SeenSerializer,
        responses={
            200: WorkflowDetailSerializer,
            409: as_problem("The engine has changed it; nothing was changed."),
        },
    )
    @action(detail=True, methods=["post"])
    def enable(self, request: Request, tool_name: str) -> Response:
        """Enable a workflow.
        Hidden workflows follow their engine. With the reviewed `upstream.content_hash` as `content_hash`,
        one that has changed since stays hidden."""
        workflow = self.get_object()
        body = self.read_body(SeenSerializer)
        seen, by = body.get("content_hash"), actor_of(request)
        if seen is None:
            actions.enable_workflows(Workflow.objects.filter(pk=workflow.pk), by=by)
        elif message := actions.enable_if_unchanged({workflow.pk: seen}, by=by).refusal():
            raise Refusal(status.HTTP_409_CONFLICT, message)
        return self._shown(workflow)

    @action(detail=True, methods=["post"])
    def disable(self, request: Request, tool_name: str) -> Response:
        """Disable a workflow."""
        workflow = self.get_object()
        actions.disable_workflows(Workflow.objects.filter(pk=workflow.pk), by=actor_of(request))
        return self._shown(workflow)

    @extend_schema(
        request=SelectionSerializer,
        responses=CHANGED | {200: EnabledSerializer},
        examples=[
            OpenApiExample("All", {"source": "orders", "all": True}, request_only=True),
            OpenApiExample("Some", {"source": "orders", "names": ["text_statistics"]}, request_only=True),
        ],
    )
    @action(detail=False, methods=["post"], url_path="enable", url_name="enable-many")
    def enable_many(self, request: Request) -> Response:
        """Enable workflows of a source.
        All or none: an unknown name changes nothing. List them with `warned=true` before."""
        chosen = self._chosen()
        warned = list(chosen.filter(enabled=False).exclude(warning="").values_list("tool_name", flat=True))
        changed = actions.enable_workflows(chosen, by=actor_of(request))
        return Response({"changed": changed} | ({"warned": warned} if warned else {}))

    @extend_schema(
        request=SelectionSerializer,
        responses=CHANGED,
        examples=[OpenApiExample("All", {"source": "orders", "all": True}, request_only=True)],
    )
    @action(detail=False, methods=["post"], url_path="disable", url_name="disable-many")
    def disable_many(self, request: Request) -> Response:
        """Disable workflows of a source.
        All or none: an unknown name changes nothing."""
        return Response({"changed": actions.disable_workflows(self._chosen(), by=actor_of(request))})

    @extend_schema(
        request=MissingSelectionSerializer,
        responses=CHANGED | {200: RemovedSerializer},
        examples=[OpenApiExample("All", {"source": "orders", "all": True}, request_only=True)],
    )
    @action(detail=False, methods=["post"], url_path="remove-missing", url_name="remove-missing")
    def remove_missing(self, request: Request) -> Response:
        """Remove workflows that their engine no longer lists.
        With curators' texts, settings and picks for toolsets; the history keeps these. Those that the
        engine lists and those with executions on record are kept. If the engine lists one again, it is a
        new workflow. All or none: an unknown name changes nothing."""
        outcome = actions.remove_missing(self._chosen(missing=True), by=actor_of(request))
        return Response(RemovedSerializer(outcome).data)

    def _chosen(self, *, missing: bool = False) -> QuerySet[Workflow]:
        body = self.read_body(MissingSelectionSerializer if missing else SelectionSerializer)
        source = Source.objects.filter(name=body["source"]).first()
        if source is None:
            raise Refusal(404, f"Nothing was changed: there is no source {body['source']}.")
        try:
            return actions.choose_workflows(source, body.get("names"), missing=missing)
        except actions.UnknownWorkflows as unknown:
            problems = [Problem("/names", f"No such workflow: {name}") for name in unknown.names]
            raise Refusal(404, "Nothing was changed: some names are unknown.", errors=problems) from None

    def _shown(self, workflow: Workflow) -> Response:
        workflow.refresh_from_db()
        return Response(self.get_serializer(workflow).data)
