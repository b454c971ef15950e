from typing import Any

from django.db import transaction
from django.db.models import Max
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.exposure import effect_of_replacing
from catalogue.history import changed_fields
from catalogue.models import Revision, WorkflowFilter
from catalogue.patterns import find_pattern_problem
from catalogue.permissions import admin_access
from catalogue.rest.base import StrictSerializer, StringListField, check_parameters, is_set
from catalogue.rest.views import ApiViewSet

HIGHEST_POSITION = 1_000_000_000
POSITIONS_APART = 10
PREVIEW = OpenApiParameter(
    "preview", bool, description="`true`: nothing is saved; the answer is what would change."
)
NEW_FILTER = {"action": "exclude", "subject": "tag", "pattern": "internal"}


class RuleSerializer(StrictSerializer):
    """One rule; the first that matches a workflow decides about it."""

    action = serializers.ChoiceField(
        choices=WorkflowFilter.Action.choices, default=WorkflowFilter.Action.INCLUDE.value
    )
    subject = serializers.ChoiceField(
        choices=WorkflowFilter.Subject.choices,
        default=WorkflowFilter.Subject.NAME.value,
        help_text="What of a workflow the pattern is compared with.",
    )
    syntax = serializers.ChoiceField(
        choices=WorkflowFilter.Syntax.choices, default=WorkflowFilter.Syntax.GLOB.value
    )
    pattern = serializers.CharField(max_length=500)
    enabled = serializers.BooleanField(default=True)
    note = serializers.CharField(max_length=255, allow_blank=True, default="")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if problem := find_pattern_problem(syntax=attrs["syntax"], pattern=attrs["pattern"]):
            raise serializers.ValidationError({"pattern": [problem]})
        return attrs


class FilterSerializer(RuleSerializer):
    id = serializers.IntegerField(read_only=True)
    position = serializers.IntegerField(
        min_value=0,
        max_value=HIGHEST_POSITION,
        required=False,
        help_text="Lower numbers come first; the first match decides. If omitted: after all others.",
    )


class FilterChangeSerializer(FilterSerializer):
    """Omitted fields stay."""

    pattern = serializers.CharField(max_length=500, required=False)


class FilterEffectSerializer(serializers.Serializer[Any]):
    """The effect of a change on agents, by tool name."""

    shown = StringListField(help_text="Workflows that they newly see.")
    hidden = StringListField(help_text="Workflows that they no longer see.")


class WrittenFilterSerializer(FilterSerializer):
    id = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Null in the preview of a new one."
    )
    effect = FilterEffectSerializer(read_only=True)


@extend_schema_view(
    list=extend_schema(summary="List filters", description="In the order in which they are tried."),
    retrieve=extend_schema(summary="Read a filter"),
)
@extend_schema(tags=["Filters"])
class FilterViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[WorkflowFilter]):
    queryset = WorkflowFilter.objects.all()
    serializer_class = FilterSerializer
    lookup_value_regex = "[0-9]{1,18}"
    access = {
        **admin_access("catalogue.view_workflowfilter", "list", "retrieve"),
        **admin_access("catalogue.add_workflowfilter", "create"),
        **admin_access("catalogue.change_workflowfilter", "partial_update"),
        **admin_access("catalogue.delete_workflowfilter", "destroy"),
    }

    @extend_schema(
        parameters=[PREVIEW],
        request=FilterSerializer,
        responses={200: WrittenFilterSerializer, 201: WrittenFilterSerializer},
        examples=[OpenApiExample("Hide by tag", NEW_FILTER, request_only=True)],
    )
    @transaction.atomic
    def create(self, request: Request) -> Response:
        """Add a filter.
        Agents notice within a second. The first include filter hides what it does not match."""
        body = self.read_body(FilterSerializer)
        Revision.lock()
        last = WorkflowFilter.objects.aggregate(last=Max("position"))["last"]
        place = 0 if last is None else last + POSITIONS_APART
        rule = WorkflowFilter(**{"position": place} | body)
        return self._write(request, rule, status.HTTP_201_CREATED, message="Added.")

    @extend_schema(
        parameters=[PREVIEW],
        request=FilterChangeSerializer,
        responses=WrittenFilterSerializer,
        examples=[OpenApiExample("Switch it off", {"enabled": False}, request_only=True)],
    )
    @transaction.atomic
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change a filter.
        Omitted fields are unchanged."""
        Revision.lock()
        rule = self.get_object()
        given = request.data if isinstance(request.data, dict) else {"": request.data}
        written = FilterSerializer(data=FilterSerializer(rule).data | given)
        written.is_valid(raise_exception=True)
        for name, value in written.validated_data.items():
            setattr(rule, name, value)
        return self._write(request, rule, status.HTTP_200_OK, message=changed_fields(given))

    @extend_schema(responses={204: None})
    @transaction.atomic
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a filter."""
        Revision.lock()
        rule = self.get_object()
        self.record_deletion(rule)
        rule.delete()
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _write(self, request: Request, rule: WorkflowFilter, code: int, *, message: str) -> Response:
        check_parameters(request, PREVIEW)
        is_preview = is_set(request, PREVIEW)
        stored = list(WorkflowFilter.objects.all())
        effect = effect_of_replacing(stored, [*(other for other in stored if other.pk != rule.pk), rule])
        if is_preview:
            code = status.HTTP_200_OK
        else:
            rule.save()
            self.record(message, rule)
        shown = {"shown": effect.shown, "hidden": effect.hidden}
        return Response(FilterSerializer(rule).data | {"effect": shown}, code)
