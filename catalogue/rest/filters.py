from copy import copy
from typing import Any, ClassVar

from django.db import transaction
from django.db.models import Max
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from access.permissions import admin_access
from catalogue.configuration import FILTER, RULE_FIELDS
from catalogue.exposure import effect_of_replacing
from catalogue.history import changed_fields, set_fields
from catalogue.models import Revision, WorkflowFilter
from catalogue.rest.base import StrictSerializer, StringListField, check_parameters, is_set
from catalogue.rest.views import DestroyMixin

MAX_POSITION = 1_000_000_000
POSITIONS_APART = 10
PREVIEW = OpenApiParameter(
    "preview", bool, description="`true`: nothing is saved; the answer is what would change."
)
NEW_FILTER = {"action": "exclude", "subject": "tag", "pattern": "internal"}


class RuleSerializer(StrictSerializer, serializers.ModelSerializer[WorkflowFilter]):
    """One rule; the first that matches a workflow decides about it."""

    class Meta:
        model = WorkflowFilter
        fields: tuple[str, ...] = RULE_FIELDS
        extra_kwargs: ClassVar[dict[str, Any]] = {
            name: {"default": FILTER.defaults[name]} for name in RULE_FIELDS if name != "pattern"
        }

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        rule = copy(self.instance) if self.instance else WorkflowFilter()
        set_fields(rule, attrs, allowed=self.fields)
        if rule.pattern_problem:
            raise serializers.ValidationError({"pattern": [rule.pattern_problem]})
        return attrs


class FilterSerializer(RuleSerializer):
    class Meta(RuleSerializer.Meta):
        fields: tuple[str, ...] = ("id", "position", *RULE_FIELDS)
        extra_kwargs = RuleSerializer.Meta.extra_kwargs | {"position": {"max_value": MAX_POSITION}}


class FilterChangeSerializer(FilterSerializer):
    """Omitted fields stay."""


class FilterEffectSerializer(serializers.Serializer[Any]):
    """The effect of a change on agents, by tool name."""

    shown = StringListField(help_text="Workflows that they newly see.")
    hidden = StringListField(help_text="Workflows that they no longer see.")


class WrittenFilterSerializer(FilterSerializer):
    id = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Null in the preview of a new one."
    )
    effect = FilterEffectSerializer(read_only=True)

    class Meta(FilterSerializer.Meta):
        fields = (*FilterSerializer.Meta.fields, "effect")


@extend_schema(tags=["Exposure rules"])
class FilterViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, DestroyMixin[WorkflowFilter]):
    """Exposure rules, in the order in which they are tried."""

    queryset = WorkflowFilter.objects.all()
    serializer_class = FilterSerializer
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
        """Add an exposure rule.
        Agents notice within a second. The first include rule hides what it does not match."""
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
        """Change an exposure rule.
        Omitted fields are unchanged."""
        Revision.lock()
        rule = self.get_object()
        body = self.read_body(FilterSerializer, instance=rule, partial=True)
        set_fields(rule, body, allowed=body)
        return self._write(request, rule, status.HTTP_200_OK, message=changed_fields(body))

    def _write(self, request: Request, rule: WorkflowFilter, code: int, *, message: str) -> Response:
        check_parameters(request, PREVIEW)
        stored = list(WorkflowFilter.objects.all())
        effect = effect_of_replacing(stored, [*(other for other in stored if other.pk != rule.pk), rule])
        if is_set(request, PREVIEW):
            code = status.HTTP_200_OK
        else:
            rule.save()
            self.record(message, rule)
        return Response(FilterSerializer(rule).data | {"effect": FilterEffectSerializer(effect).data}, code)
