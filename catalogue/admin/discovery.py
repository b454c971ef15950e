"""Discovery runs, and the reviews and confirmations that they wait for."""

import json
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter, RelatedDropdownFilter

from catalogue.actions.reviews import (
    KINDS,
    Decided,
    ReviewRefused,
    UnknownFields,
    accept_offers,
    confirm_listing,
    differences_of,
    differing_only_in,
    fields_together,
    find_misfits,
    keep_accepted,
    warning_of_review,
)
from catalogue.admin import base
from catalogue.admin import rendering as html
from catalogue.drift import Difference, describe_differences, show_unseen
from catalogue.exposure import Placement
from catalogue.history import actor_of
from catalogue.http_tools import KIND
from catalogue.models import DiscoveryRun, HistoryEntry, Review, Source, Workflow
from catalogue.naming import counted, listed

KIND_BADGES = {Review.Kind.CHANGED: "warning", Review.Kind.NEW: "info"}
OFFER, FIELD, IN_PART, KEPT = "offer", "field", "in_part", "kept"
COMMANDING = "may try to command agents"
SHOWN_DONE = 5
SHOWN_AT_ONCE = 50  # Reviews on one page, and so the most that one click decides
MAX_COMPARED_LENGTH = 400  # Words of two compared texts; the comparison takes cubic time at worst


class DecisionFilter(DropdownFilter):  # type: ignore[misc]
    title = "decision"
    parameter_name = "decision"
    all_option = ("", "awaited")

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("kept", "turned down")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Review]) -> QuerySet[Review]:
        if self.value() == "kept":
            return queryset.exclude(kept_at=None)
        return queryset.filter(pk__in=Review.objects.awaiting().values("pk"))


class KindFilter(DropdownFilter):  # type: ignore[misc]
    title = "what differs"
    parameter_name = "only"
    all_option = ("", "anything")

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(kind, f"only {kind.removeprefix('upstream_').replace('_', ' ')}") for kind in KINDS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Review]) -> QuerySet[Review]:
        return differing_only_in(queryset, [kind]) if (kind := self.value()) else queryset


class ReviewChangeList(base.CatalogueChangeList):
    """Reads the data for the differences of all rows once."""

    result_list: Any

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: list[Any] = list(self.result_list)
        self.result_list, placement = rows, Placement()
        for review in rows:
            review.placement = placement


@admin.register(Review)
class ReviewAdmin(base.PanelOnlyMixin, base.ButtonsMixin):
    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("catalogue/admin/reviews.css",)}

    list_display = ("tool", "source", "kind_shown", "told", "since")
    list_filter = (
        ("workflow__source", RelatedDropdownFilter),
        ("kind", ChoicesDropdownFilter),
        KindFilter,
        DecisionFilter,
    )
    list_select_related = ("workflow__source",)
    list_per_page = SHOWN_AT_ONCE
    list_disable_select_all = True  # Rows of other pages are never selected
    search_fields = ("workflow__tool_name", "workflow__name", "workflow__upstream_id")
    search_help_text = "Names and ids"
    actions = ("accept_selected", "keep_selected")
    buttons = ("accept", "keep")
    why_gone = "It was accepted, or the engine withdrew it; the history of the workflow has the decision."
    fields = ("held_since",)
    history_model = Workflow
    change_form_outer_before_template = "catalogue/admin/review.html"

    # The permissions of workflows apply.

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("catalogue.view_workflow") or self.has_decide_permission(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_decide_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("catalogue.change_workflow")

    def may_press_buttons(self, request: HttpRequest) -> bool:
        return self.has_decide_permission(request)

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ReviewChangeList]:
        return ReviewChangeList

    tool = base.column("tool name", "workflow__tool_name", html.wrapped)
    since = base.column("held", "held_since")

    @admin.display(description="source", ordering="workflow__source__name")
    def source(self, review: Review) -> SafeString:
        return html.link(review.workflow.source, "catalogue_source_change", review.workflow.source_id)

    @admin.display(description="kind", ordering="kind")
    def kind_shown(self, review: Review) -> SafeString:
        return html.badge(review.get_kind_display(), KIND_BADGES[Review.Kind(review.kind)])

    @admin.display(description="the engine's current version")
    def told(self, review: Any) -> SafeString:
        differences = differences_of(review, review.placement)
        summary = _with_code(describe_differences(differences))
        if review.kind == Review.Kind.NEW:
            described = show_unseen(review.workflow.description) or "No description."
            summary = html.paragraphs(html.shortened(described, 120))
        return _with_offer(review, html.side_by_side([*_marks(review, differences), summary]))

    @admin.action(description="Accept: agents see the engine's current version…", permissions=["decide"])
    def accept_selected(self, request: HttpRequest, queryset: QuerySet[Review]) -> HttpResponse | None:
        return _ask_to_accept(self, request, queryset, queryset, "Selected changes")

    @admin.action(description="Keep the accepted version", permissions=["decide"])
    def keep_selected(self, request: HttpRequest, queryset: QuerySet[Review]) -> None:
        _decide_selected(request, queryset, keeps=True)

    # The page of one

    def get_buttons(self, request: HttpRequest, obj: Review) -> list[base.Button]:
        variants = {"keep" if _is_doubtful(obj, differences_of(obj)) else "accept": "primary"}
        labels = {"accept": "Accept the change", "keep": "Keep the accepted version"}
        if obj.kind == Review.Kind.NEW:
            labels = {"accept": "Accept and enable", "keep": "Leave hidden"}
        return [
            replace(
                one, values=_shown(obj), label=labels[one.name], variant=variants.get(one.name, "default")
            )
            for one in super().get_buttons(request, obj)
            if one.name != "keep" or obj.kept_at is None
        ]

    @base.button("Accept", icon="check", records=True)
    def accept(self, request: HttpRequest, review: Review) -> None:
        """All fields, or those chosen below the differences."""
        offers, fields = {review.pk: request.POST.get(OFFER, "")}, request.POST.getlist(FIELD)
        if IN_PART in request.POST and not fields:
            messages.warning(request, "Nothing was changed. Select at least one of the differences.")
            return
        awaiting = () if KEPT in request.POST else offers
        try:
            decided = accept_offers(offers, by=actor_of(request), fields=fields, awaiting=awaiting)
        except UnknownFields as unknown:
            messages.error(request, str(unknown))
        else:
            _report(request, decided, "Accepted in part" if fields else "Accepted")

    @base.button("Keep", icon="block", records=True)
    def keep(self, request: HttpRequest, review: Review) -> None:
        offers = {review.pk: request.POST.get(OFFER, "")}
        _report(request, keep_accepted(offers, by=actor_of(request)), "Kept")

    def _press(self, request: HttpRequest, object_id: str, *, name: str) -> HttpResponseBase:
        """Redirects to the list, unless the review must be repeated."""
        answer = super()._press(request, object_id, name=name)
        reviews = Review.objects.all() if name == "accept" else Review.objects.awaiting()
        if reviews.filter(pk__in=[object_id]).exists():
            return answer
        return HttpResponseRedirect(reverse("admin:catalogue_review_changelist"))

    def _has_history(self, obj: Review) -> bool:
        return HistoryEntry.of(obj.workflow).exists()

    def panel(self, request: HttpRequest, obj: Review) -> dict[str, Any]:
        workflow, is_new = obj.workflow, obj.kind == Review.Kind.NEW
        differences = differences_of(obj)
        served = "Agents do not see it yet." if is_new else "Agents see the accepted version."
        return {
            "headline": [html.side_by_side([self.kind_shown(obj), served])],
            "facts": [
                ("Workflow", html.link(workflow.tool_name, "catalogue_workflow_change", workflow.pk)),
                ("Source", html.link(workflow.source, "catalogue_source_change", workflow.source_id)),
                ("Held since", html.exactly(obj.held_since)),
                ("Turned down", html.exactly(obj.kept_at)),
            ],
            "misfits": find_misfits(obj),
            "parts": self._parts(request, obj, differences),
            "shown": _shown(obj),
            **_in_full(obj, differences),
        }

    def _parts(
        self, request: HttpRequest, review: Review, differences: list[Difference]
    ) -> list[tuple[str, str]]:
        """The fields that can be accepted separately, with their names; empty for a single one."""
        parts: dict[tuple[str, ...], list[str]] = {}
        for field in dict.fromkeys(one.field for one in differences):
            parts.setdefault(fields_together(field, review.workflow.source), []).append(field)
        shown = [
            (fields[0], ", ".join(field.removeprefix("upstream_").replace("_", " ") for field in fields))
            for fields in parts.values()
        ]
        return shown if len(shown) > 1 and self.may_press_buttons(request) else []


def _shown(review: Review) -> tuple[tuple[str, str], ...]:
    """Returns the fields by which a decision names what the page shows."""
    return ((OFFER, review.offer_hash), *(((KEPT, "yes"),) if review.kept_at else ()))


def _with_offer(review: Review, shown: SafeString) -> SafeString:
    """Adds the displayed offer, which a decision names."""
    seen = format_html('<input type="hidden" name="{}-{}" value="{}">', OFFER, review.pk, review.offer_hash)
    return format_html("<div>{}{}</div>", seen, shown)


def _in_full(review: Review, differences: list[Difference]) -> dict[str, Any]:
    shown: dict[str, Any] = {"shown_differences": [_ShownDifference(one) for one in differences]}
    if review.kind == Review.Kind.NEW:
        workflow = review.workflow
        description = show_unseen(workflow.description) or "None. A description is required."
        shown["new_workflow"] = (
            ("Title", show_unseen(workflow.title)),
            ("Description", html.paragraphs(description)),
            ("May try to command agents", workflow.warning),
            ("Can be mistaken for", workflow.resembles),
            ("Input schema", html.pretty_json(workflow.input_schema)),
        )
    return shown


def _is_doubtful(review: Review, differences: list[Difference]) -> bool:
    looks_like = review.workflow.resembles if review.kind == Review.Kind.NEW else ""
    return bool(looks_like or warning_of_review(review, differences))


def _marks(review: Review, differences: list[Difference]) -> list[SafeString]:
    return [html.badge(COMMANDING, "danger")] if warning_of_review(review, differences) else []


def _decide_selected(request: HttpRequest, reviews: QuerySet[Review], *, keeps: bool) -> None:
    """Names those, too, that others have decided since the list was shown, and leaves them alone."""
    chosen = list(reviews.select_related(None).only("kept_at"))
    shown = [key for key in request.POST.getlist(ACTION_CHECKBOX_NAME) if f"{OFFER}-{key}" in request.POST]
    selected = Workflow.objects.filter(pk__in=shown)
    gone = selected.exclude(pk__in=[review.pk for review in chosen]).values_list("tool_name", flat=True)
    seen = {one.pk: offer for one in chosen if (offer := request.POST.get(f"{OFFER}-{one.pk}"))}
    if unseen := len(chosen) - len(seen):
        messages.warning(request, f"Skipped because the page did not show them: {unseen}.")
    if keeps:
        decided = keep_accepted(seen, by=actor_of(request))
    else:
        awaiting = {review.pk for review in chosen if review.kept_at is None}
        decided = accept_offers(seen, by=actor_of(request), awaiting=awaiting)
    decided.nothing_held += gone
    _report(request, decided, "Kept" if keeps else "Accepted")


def _report(request: HttpRequest, decided: Decided, done: str) -> None:
    if decided.done:
        messages.success(request, f"{done}: {listed(decided.done, SHOWN_DONE)}.")
    if refused := decided.refusal():
        messages.warning(request, refused)


class _ShownDifference:
    def __init__(self, difference: Difference) -> None:
        self.told = _with_code(difference.text[:1].upper() + difference.text[1:])
        self.warning, self.harmless = difference.warning, difference.harmless
        old, new = difference.old, difference.new
        if isinstance(old, str) and isinstance(new, str):
            self.old, self.new = _marked(old, new)
        else:
            self.old, self.new = _shown_value(old), _shown_value(new)


def _with_code(text: str) -> SafeString:
    """Names between backticks become chips."""
    parts = text.split("`")
    return format_html_join(
        "", "{}", ((html.chip(part) if at % 2 else part,) for at, part in enumerate(parts))
    )


def _shown_value(value: Any) -> SafeString:
    if value is None or value == "":
        return mark_safe("<i>nothing</i>")
    if isinstance(value, str):
        return format_html('<div class="whitespace-pre-line">{}</div>', show_unseen(value))
    if isinstance(value, dict | list):
        return html.pretty_json(json.loads(show_unseen(json.dumps(value, ensure_ascii=False))))
    return format_html("{}", json.dumps(value))


def _marked(old: str, new: str) -> tuple[SafeString, SafeString]:
    before, after = show_unseen(old).split(" "), show_unseen(new).split(" ")
    if len(before) + len(after) > MAX_COMPARED_LENGTH:
        return _shown_value(old), _shown_value(new)
    left: list[str] = []
    right: list[str] = []
    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        left.append(_words(before[a:b], "del" if kind != "equal" else ""))
        right.append(_words(after[c:d], "ins" if kind != "equal" else ""))
    return tuple(  # type: ignore[return-value]
        format_html(
            '<div class="whitespace-pre-line">{}</div>',
            format_html_join(" ", "{}", ((part,) for part in side if part)),
        )
        for side in (left, right)
    )


MARKS = {
    "del": "bg-red-100 text-red-700 dark:bg-red-500/20 dark:text-red-400",
    "ins": "bg-green-100 text-green-700 dark:bg-green-500/20 dark:text-green-400",
}


def _words(words: list[str], mark: str) -> SafeString:
    text = escape(" ".join(words))
    if not (text and mark):
        return text
    return format_html('<{} class="{} rounded-default px-0.5">{}</{}>', mark, MARKS[mark], text, mark)


# In the list and on the pages of workflows and sources


def note_reviews(workflows: list[Any]) -> None:
    """Set the kind of the undecided review on each row of a page, by one query."""
    awaiting = Review.objects.awaiting().filter(pk__in=[workflow.pk for workflow in workflows]).order_by()
    kinds = dict(awaiting.values_list("pk", "kind"))
    for workflow in workflows:
        workflow.awaited_review = kinds.get(workflow.pk)


def review_badge(workflow: Any) -> SafeString:
    if workflow.awaited_review is None:
        return mark_safe("")
    kind = Review.Kind(workflow.awaited_review)
    told = "new, to review" if kind == Review.Kind.NEW else "change to review"
    page = reverse("admin:catalogue_review_change", args=[workflow.pk])
    return html.badge(told, KIND_BADGES[kind], href=page)


def accept_for_workflows(
    pages: base.CatalogueAdmin, request: HttpRequest, workflows: QuerySet[Workflow]
) -> HttpResponse | None:
    reviews = Review.objects.awaiting().filter(workflow__in=workflows.order_by().values("pk"))
    if not reviews.exists():
        messages.warning(request, "None of the selected workflows has a held change.")
        return None
    return _ask_to_accept(pages, request, workflows, reviews, "Held changes of the selected workflows")


def _ask_to_accept(
    pages: base.CatalogueAdmin,
    request: HttpRequest,
    selected: QuerySet[Any],
    reviews: QuerySet[Review],
    what: str,
) -> HttpResponse | None:
    """The page that shows these changes in full, those with warnings first; submitting it accepts them."""
    awaiting, placement = reviews.count(), Placement()
    if "post" in request.POST or not awaiting:
        _decide_selected(request, reviews, keeps=False)
        return None
    rows = reviews.select_related("workflow__source")[:SHOWN_AT_ONCE]
    held = [(review, differences_of(review, placement)) for review in rows]
    held.sort(key=lambda one: not _is_doubtful(*one))
    first = f"; this accepts the first {len(held)}" if awaiting > len(held) else ""
    note, shown = f"{what}: {awaiting:,}{first}", []
    for review, differences in held:
        name = html.link(review.workflow.tool_name, "catalogue_review_change", review.pk)
        kind = html.badge(review.get_kind_display(), KIND_BADGES[Review.Kind(review.kind)])
        heading = html.side_by_side([name, kind, *_marks(review, differences)])
        in_full = render_to_string("catalogue/admin/review_differences.html", _in_full(review, differences))
        shown.append(_with_offer(review, format_html('<div class="mb-1">{}</div>{}', heading, in_full)))
    return base.ask_for_selected(
        pages, request, selected, forms.Form, "Accept changes", lambda _: None, note=note, shown=shown
    )


def review_fact(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    review = Review.objects.filter(pk=workflow.pk).defer("offered").first()
    if review is None:
        return "Review", ""
    state = "turned down" if review.kept_at else "awaiting a decision"
    what = "a change of the engine" if review.kind == Review.Kind.CHANGED else "a new workflow"
    return "Review", html.link(f"{what}, {state}", "catalogue_review_change", review.pk)


def reviews_fact(request: HttpRequest, source: Source) -> tuple[str, Any]:
    count = Review.objects.awaiting().filter(workflow__source=source).count()
    query = f"?workflow__source__id__exact={source.pk}"
    return "Changes to review", html.link(count, "catalogue_review_changelist", query=query) if count else ""


def held_listing_fact(request: HttpRequest, source: Source) -> tuple[str, Any]:
    run = DiscoveryRun.objects.held().filter(source=source).for_lists().first()
    if run is None:
        return "Held listing", ""
    gone = counted(run.missing, "workflow is", "workflows are")
    advice = f"{gone} missing from it: review and confirm"
    return "Held listing", html.link_if_allowed(request, advice, "catalogue_discoveryrun_change", run.pk)


# Discovery runs

OUTCOME_BADGES = {
    DiscoveryRun.Outcome.RUNNING: "info",
    DiscoveryRun.Outcome.SUCCEEDED: "success",
    DiscoveryRun.Outcome.FAILED: "danger",
    DiscoveryRun.Outcome.HELD: "warning",
}
COUNTS = ("added", "updated", "unchanged", "returned", "missing", "held")
HELD = "Agents still see the workflows below. Confirm the listing if they were removed for good."
NAMED = {
    "missing": "Missing from the engine's list",
    "held": "Changed and held for review",
    "added": "Added",
    "updated": "Updated",
    "returned": "Returned",
}
RUN_HEADERS = ("Started", "Outcome", "Trigger", "Took", "Result")


def describe_counts(run: DiscoveryRun) -> str:
    """`8 workflows found: 2 added, 6 unchanged; 1 skipped, 1 with its schema replaced`."""
    changes = ", ".join(f"{getattr(run, name)} {name}" for name in COUNTS if getattr(run, name))
    if run.source.kind == KIND:
        return changes or "The API was reached; its tools are declared in the catalogue"
    skipped = f"; {run.skipped_count} skipped" if run.skipped_count else ""
    return f"{counted(run.found, 'workflow')} found{': ' if changes else ''}{changes}{skipped}"


def describe_run(run: DiscoveryRun) -> str:
    return run.error or describe_counts(run)


def run_row(request: HttpRequest, run: DiscoveryRun) -> list[Any]:
    started = html.link_if_allowed(request, html.ago(run.started_at), "catalogue_discoveryrun_change", run.pk)
    return [
        started,
        outcome_badge(run),
        run.get_trigger_display(),
        html.duration(run.duration_ms),
        html.paragraphs(describe_run(run)),
    ]


def outcome_badge(run: DiscoveryRun) -> SafeString:
    return html.badge(run.get_outcome_display(), OUTCOME_BADGES[DiscoveryRun.Outcome(run.outcome)])


def _with_reason(named: dict[str, Any]) -> tuple[str, str, str]:
    return html.shortened(named["id"]), html.shortened(named["name"]), html.paragraphs(named["reason"])


@admin.register(DiscoveryRun)
class DiscoveryRunAdmin(base.ReadOnlyMixin, base.ButtonsMixin):
    list_display = ("started", "source", "outcome_shown", "trigger", "took", "told")
    list_filter = (
        ("source", RelatedDropdownFilter),
        ("outcome", ChoicesDropdownFilter),
        ("trigger", ChoicesDropdownFilter),
    )
    list_select_related = ("source",)
    list_per_page = 50
    newest_by = "started_at"
    fieldsets = (
        (
            None,
            {"fields": (("source", "trigger"), ("outcome_shown", "took"), ("began", "ended"), "error_shown")},
        ),
        (
            "Found",
            {"fields": (("found", "unchanged"), ("added", "updated"), ("missing", "returned"), "held")},
        ),
    )
    buttons = ("confirm",)
    change_form_outer_before_template = "catalogue/admin/discovery_run_panel.html"
    change_form_outer_after_template = "catalogue/admin/discovery_run_objects.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[DiscoveryRun]:
        runs: QuerySet[DiscoveryRun] = super().get_queryset(request)
        # Only the page of a run shows the long lists, and reads them then.
        return runs.for_lists()  # type: ignore[attr-defined,no-any-return]

    started = base.column("started", "started_at")
    began = base.column("started", "started_at", html.exactly)
    ended = base.column("finished", "finished_at", html.exactly)
    took = base.column("took", "duration_ms", html.duration, sorts=False)
    error_shown = base.column("error", "error", html.paragraphs)

    @admin.display(description="outcome", ordering="outcome")
    def outcome_shown(self, run: DiscoveryRun) -> SafeString:
        return outcome_badge(run)

    @admin.display(description="result")
    def told(self, run: DiscoveryRun) -> str:
        return html.shortened(describe_run(run), 80)

    def get_buttons(self, request: HttpRequest, obj: DiscoveryRun) -> list[base.Button]:
        """The latest held listing of a source can be confirmed."""
        is_held = obj.outcome == DiscoveryRun.Outcome.HELD and DiscoveryRun.objects.held().filter(pk=obj.pk)
        return super().get_buttons(request, obj) if is_held else []

    def may_press_buttons(self, request: HttpRequest) -> bool:
        return request.user.has_perm("catalogue.change_source")

    @base.button(
        "Confirm removal",
        icon="check",
        variant="primary",
        confirm="Remove these workflows from the catalogue, as the engine no longer lists them?",
        records=True,
    )
    def confirm(self, request: HttpRequest, held: DiscoveryRun) -> None:
        try:
            run = confirm_listing(held, by=actor_of(request))
        except ReviewRefused as refused:
            messages.warning(request, str(refused))
            return
        if run is None:
            messages.info(
                request, "Confirmed. The source cannot be listed right now; its next listing applies."
            )
        elif run.outcome == DiscoveryRun.Outcome.SUCCEEDED:
            messages.success(request, f"Confirmed. {describe_counts(run)}.")
        else:
            details = html.link("Details", "catalogue_discoveryrun_change", run.pk)
            messages.error(request, format_html("Confirmed, but: {} {}", run.error, details))

    def panel(self, request: HttpRequest, obj: DiscoveryRun) -> dict[str, Any]:
        page = "catalogue_workflow_change"
        return {
            "headline": [outcome_badge(obj), HELD] if self.get_buttons(request, obj) else [],
            "facts": [("Confirmed", html.exactly(obj.confirmed_at))],
            "named": [
                (
                    label,
                    getattr(obj, change),
                    [
                        html.link_if_allowed(request, one["tool_name"], page, one["workflow"])
                        for one in changed
                    ],
                )
                for change, label in NAMED.items()
                if (changed := obj.changes.get(change))
            ],
            "skipped_count": obj.skipped_count,
            "skipped": html.table(
                ("Position", "Id", "Name", "Why it was skipped"),
                ((one["position"], *_with_reason(one)) for one in obj.skipped),
            ),
            "flagged": html.table(("Id", "Name", "Why to review it"), map(_with_reason, obj.flagged)),
        }
