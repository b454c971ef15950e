from collections.abc import Callable
from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from access.permissions import admin_access
from catalogue.actions.reviews import (
    ACCEPTABLE,
    KINDS,
    Decided,
    Offers,
    accept_offers,
    differences_of,
    differing_only_in,
    keep_accepted,
    offers_of,
    warning_of_review,
)
from catalogue.drift import Difference, describe_differences, kinds_held
from catalogue.exposure import Placement
from catalogue.history import actor_of
from catalogue.models import Review, Source, Workflow
from catalogue.rest import base
from catalogue.rest.views import ApiViewSet

TOOL_NAME = "[A-Za-z0-9_.-]+"
HASH_LENGTH = 64
MAX_OFFERS = 10_000


class ReviewSerializer(base.RowSerializer[Review]):
    """A change or a new workflow that awaits a decision."""

    workflow = serializers.CharField(source="workflow.tool_name", help_text="What agents call.")
    source = serializers.CharField(source="workflow.source.name")  # type: ignore[assignment]
    told = serializers.SerializerMethodField(help_text="What changed, in one line; empty for a new workflow.")
    warning = serializers.SerializerMethodField(
        help_text="Words by which its new texts, or all of a new workflow, may try to command agents."
    )
    differs_in = serializers.SerializerMethodField(help_text="The kinds of differences that need a decision.")

    class Meta:
        model = Review
        fields: tuple[str, ...] = (
            "workflow", "source", "kind", "offer", "told", "warning", "differs_in", "held_since", "kept_at",
        )  # fmt: skip
        extra_kwargs = base.rename({"offer": "offer_hash"})

    def get_told(self, review: Review) -> str:
        return describe_differences(self._differences(review))

    def get_warning(self, review: Review) -> str:
        return warning_of_review(review, self._differences(review))

    def get_differs_in(self, review: Review) -> list[str]:
        return kinds_held(self._differences(review))

    def _differences(self, review: Review) -> list[Difference]:
        return differences_of(review, self.context["placement"])


class DifferenceSerializer(serializers.Serializer[Any]):
    """One difference between the engine's version and the accepted version."""

    field = serializers.CharField(help_text="Such as `description`: it can be accepted alone.")
    told = serializers.CharField(source="text", help_text="Such as: new required argument `password`.")
    kind = serializers.CharField(help_text="Such as `tags` or `argument-added`; `only` filters by it.")
    old = serializers.JSONField(help_text="Null where there was nothing.")
    new = serializers.JSONField()
    harmless = serializers.BooleanField(help_text="The policy `careful` would have let this one through.")
    warning = serializers.CharField(help_text="Words by which the new text may try to command agents.")


class ReviewDetailSerializer(ReviewSerializer):
    """A change or a new workflow that awaits a decision, in full."""

    differences = serializers.SerializerMethodField()
    offered = serializers.JSONField(help_text="All that the engine says now; null for a new workflow.")

    class Meta(ReviewSerializer.Meta):
        fields = (*ReviewSerializer.Meta.fields, "differences", "offered")

    @extend_schema_field(DifferenceSerializer(many=True))
    def get_differences(self, review: Review) -> Any:
        return DifferenceSerializer(self._differences(review), many=True).data


class OfferSerializer(base.StrictSerializer, serializers.ModelSerializer[Review]):
    class Meta:
        model = Review
        fields: tuple[str, ...] = ("offer",)
        extra_kwargs = {"offer": {"source": "offer_hash", "help_text": "The reviewed `offer`."}}


def _fields() -> serializers.Field[Any, Any, Any, Any]:
    return serializers.ListField(
        child=serializers.ChoiceField(choices=ACCEPTABLE),
        required=False,
        allow_empty=False,
        help_text="Accept these alone; the rest stays held. Where an engine's metadata says how a run is "
        "started, `name`, `input_schema` and `metadata` go together. Left out: everything.",
    )


class AcceptedOfferSerializer(OfferSerializer):
    fields = _fields()  # type: ignore[assignment]

    class Meta(OfferSerializer.Meta):
        fields = ("offer", "fields")


class DecisionSerializer(base.StrictSerializer):
    """Several at once: the named ones with their reviewed offers, or all of a source."""

    offers = serializers.DictField(
        child=serializers.CharField(max_length=HASH_LENGTH),
        required=False,
        allow_empty=False,
        help_text="The reviewed `offer` by tool name.",
    )
    source = serializers.CharField(  # type: ignore[assignment]
        required=False, max_length=64, help_text="With `all`: the source's name."
    )
    all = serializers.BooleanField(default=False, help_text="Everything that awaits review at the source.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["all"] == bool(attrs.get("offers")) or attrs["all"] != bool(attrs.get("source")):
            raise serializers.ValidationError("Give either `offers`, or `source` and `all: true`.")
        if len(attrs.get("offers", ())) > MAX_OFFERS:
            raise serializers.ValidationError(f"At most {MAX_OFFERS:,} offers at a time.")
        return attrs


class AcceptanceSerializer(DecisionSerializer):
    """Several at once, or single fields of several, with their reviewed offers; `all` is refused."""

    fields = _fields()  # type: ignore[assignment]

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["all"]:
            told = "Nothing is accepted unseen: list the reviews, and give the `offers` that you reviewed."
            raise serializers.ValidationError({"all": [told]})
        return super().validate(attrs)


class DecidedSerializer(serializers.Serializer[Decided]):
    """Tool names, by the result of the decision."""

    done = base.StringListField()
    changed_again = base.StringListField(help_text="The engine has changed it again: review it again.")
    nothing_held = base.StringListField(help_text="Already decided, withdrawn by the engine, or unknown.")
    only_whole = base.StringListField(help_text="New workflows, of which no single fields are accepted.")


class ReviewFilters(django_filters.FilterSet):  # type: ignore[misc]
    source = django_filters.CharFilter(field_name="workflow__source__name", label="The source's name.")
    kind = django_filters.ChoiceFilter(choices=Review.Kind.choices)
    only = django_filters.MultipleChoiceFilter(
        choices=[(kind, kind) for kind in KINDS],
        method=lambda reviews, _, kinds: differing_only_in(reviews, kinds),
        label="Only these kinds of differences need a decision.",
    )
    kept = base.StrictBooleanFilter(
        field_name="kept_at",
        lookup_expr="isnull",
        exclude=True,
        label="Turned down; without this parameter only what awaits a decision is listed.",
    )
    ordering = base.StableOrdering(fields=["held_since", ("workflow__tool_name", "workflow")])


Decision = Callable[..., Decided]


def _offers(decision: dict[str, Any]) -> tuple[Offers, list[str]]:
    """The offers decided on, and unknown names. Raises Refusal."""
    if decision["all"]:
        source = Source.objects.filter(name=decision["source"]).first()
        if source is None:
            raise base.Refusal(404, f"Nothing was changed: there is no source {decision['source']}.")
        return offers_of(Review.objects.awaiting().filter(workflow__source=source)), []
    named = decision["offers"]
    keys = dict(Workflow.objects.filter(tool_name__in=named).values_list("tool_name", "pk"))
    offers = {keys[name]: named[name] for name in named if name in keys}
    return offers, [name for name in named if name not in keys]


REFUSED = base.as_problem("The engine changed it again, or no change is held.")
DECIDED = {200: DecidedSerializer, 404: base.as_problem("There is no such source; nothing was changed.")}


@extend_schema_view(
    retrieve=extend_schema(
        description="With each difference between what agents see and what the engine says now."
    )
)
@extend_schema(tags=["Changes to review"])
class ReviewViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, ApiViewSet[Review]):
    """Changes of workflows that are held, and new workflows of sources that hold these."""

    queryset = Review.objects.none()
    serializer_class, list_serializer_class = ReviewDetailSerializer, ReviewSerializer
    filterset_class = ReviewFilters
    lookup_field = "workflow__tool_name"
    lookup_url_kwarg = "workflow"
    lookup_value_regex = TOOL_NAME
    access = {
        **admin_access("catalogue.view_workflow", "list", "retrieve"),
        **admin_access("catalogue.change_workflow", "accept", "keep", "accept_many", "keep_many"),
    }

    def get_queryset(self) -> QuerySet[Review]:
        reviews = Review.objects.select_related("workflow__source").order_by("-held_since", "pk")
        is_whole = self.action != "list" or "kept" in self.request.query_params
        return reviews if is_whole else reviews.awaiting()

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "placement": Placement()}

    @extend_schema(request=AcceptedOfferSerializer, responses={200: DecidedSerializer, 409: REFUSED})
    @action(detail=True, methods=["post"])
    def accept(self, request: Request, workflow: str) -> Response:
        """Accept a change.
        Agents see the engine's current version, or only its `fields` while the rest stays held. A new
        workflow is enabled."""
        return self._decide_one(accept_offers, AcceptedOfferSerializer)

    @extend_schema(request=OfferSerializer, responses={200: DecidedSerializer, 409: REFUSED})
    @action(detail=True, methods=["post"])
    def keep(self, request: Request, workflow: str) -> Response:
        """Keep the accepted version.
        Agents still see the accepted version, and no review is requested until the engine changes the
        workflow again. A new workflow stays hidden."""
        return self._decide_one(keep_accepted, OfferSerializer)

    @extend_schema(
        request=AcceptanceSerializer,
        responses=DECIDED,
        examples=[
            OpenApiExample("Some", {"offers": {"report_1": "5f1d..."}}, request_only=True),
            OpenApiExample(
                "New words, not the new schema",
                {"offers": {"report_1": "5f1d..."}, "fields": ["description"]},
                request_only=True,
            ),
        ],
    )
    @action(detail=False, methods=["post"], url_path="accept", url_name="accept-many")
    def accept_many(self, request: Request) -> Response:
        """Accept changes.
        Offers that changed since the review are left alone and named. With `fields` the rest of each
        change stays held."""
        return self._decide_many(accept_offers, AcceptanceSerializer)

    @extend_schema(request=DecisionSerializer, responses=DECIDED)
    @action(detail=False, methods=["post"], url_path="keep", url_name="keep-many")
    def keep_many(self, request: Request) -> Response:
        """Keep the accepted versions of several.
        Offers that changed since the review are left alone and named."""
        return self._decide_many(keep_accepted, DecisionSerializer)

    def _decide_one(self, decide: Decision, body: type[OfferSerializer]) -> Response:
        review = self.get_object()
        fields = dict(self.read_body(body))
        decided = decide({review.pk: fields.pop("offer_hash")}, by=actor_of(self.request), **fields)
        if refusal := decided.refusal():
            raise base.Refusal(status.HTTP_409_CONFLICT, f"Nothing was changed. {refusal}")
        return Response(DecidedSerializer(decided).data)

    def _decide_many(self, decide: Decision, body: type[DecisionSerializer]) -> Response:
        decision = self.read_body(body)
        offers, unknown = _offers(decision)
        how: dict[str, Any] = {"fields": decision["fields"]} if "fields" in decision else {}
        decided = decide(offers, by=actor_of(self.request), **how)
        decided.nothing_held += unknown
        return Response(DecidedSerializer(decided).data)
