from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Prefetch, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from unfold import widgets
from unfold.contrib.filters.admin import BooleanRadioFilter, ChoicesDropdownFilter

from catalogue.admin.base import ButtonsMixin, CatalogueChangeList, OptionsFilter, column
from catalogue.admin.form_fields import ReservedForField
from catalogue.admin.rendering import Group, badge, breakable, chip, cut_short, group_of, link, side_by_side
from catalogue.compat import formsets_of
from catalogue.exposure import ExposedCatalogue, choose, confirmed_catalogue, shown_by
from catalogue.long_lists import MAX_SEARCH
from catalogue.models import Toolset, ToolsetRule, Workflow
from catalogue.naming import counted
from executions.dashboard import Need, address
from identity.client_configuration import configurations_of, server_for_users
from identity.tokens import ToolsetInUse, delete_toolset, resource_url, tokens_bound_to
from mcp_bridge import tool_lists
from mcp_bridge.portability import find_refused

if TYPE_CHECKING:
    RuleInline = admin.TabularInline[ToolsetRule, Toolset]
    RuleModelForm = forms.ModelForm[ToolsetRule]
    RuleModelFormSet = forms.BaseInlineFormSet[Any, Any, Any]
else:
    from django.forms import BaseInlineFormSet as RuleModelFormSet
    from django.forms import ModelForm as RuleModelForm
    from unfold.admin import TabularInline as RuleInline

POSITIONS_APART = 10
NARROWEST = {"action": "7rem", "syntax": "11rem"}  # Columns of rules that would cut off their choices
CHOICES = "mcp_bridge/admin/workflow_choices.html"
MAX_SHOWN = 50
SHOWN_DESCRIPTION = 140


class RuleForm(RuleModelForm):
    position = forms.IntegerField(
        required=False,
        min_value=0,
        widget=widgets.UnfoldAdminIntegerFieldWidget(attrs={"style": "max-width: 6rem"}),
        help_text="Rules with lower positions come first, and the first match decides. If empty, the rule "
        "comes last.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["position"].widget.attrs["aria-label"] = "Position of the rule"
        if self.instance._state.adding:
            self.initial["position"] = None


class RuleFormSet(RuleModelFormSet):
    """Puts rules without a position last, where they overrule nothing."""

    def clean(self) -> None:
        super().clean()
        last = max((form.cleaned_data.get("position") or 0 for form in self.forms), default=0)
        unplaced = (form for form in self.forms if form.cleaned_data.get("position", last) is None)
        for number, form in enumerate(unplaced, start=1):
            form.instance.position = last + number * POSITIONS_APART


class RulesInline(RuleInline):
    model = ToolsetRule
    form = RuleForm
    formset = RuleFormSet
    fields = ("position", "action", "subject", "syntax", "pattern", "enabled", "note")
    extra = 0
    hide_title = True
    verbose_name = "rule"
    verbose_name_plural = "Rules: which exposed workflows it contains besides those picked by hand"

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may(request, "view", "change")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may(request, *(["change"] if obj is not None and obj.pk else ["add", "change"]))

    has_change_permission = has_delete_permission = has_add_permission

    @staticmethod
    def _may(request: HttpRequest, *verbs: str) -> bool:
        """Permissions of the toolset apply, as in REST."""
        return any(request.user.has_perm(f"catalogue.{verb}_toolset") for verb in verbs)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if field is not None:
            if db_field.name in NARROWEST:
                field.widget.attrs["style"] = f"min-width: {NARROWEST[db_field.name]}"
            field.widget.attrs["aria-label"] = f"{db_field.verbose_name} of the rule".capitalize()
        return field


def over_budget() -> list[int]:
    """Keys of enabled toolsets over their token budget."""
    budgeted = Toolset.objects.filter(token_budget__isnull=False, enabled=True)
    catalogue, cost_of = confirmed_catalogue(), tool_lists.cost_of_toolset
    return [toolset.pk for toolset in budgeted if cost_of(toolset, catalogue).is_over_budget]


def needs_smaller_lists() -> list[Need]:
    budgets = address("admin:catalogue_toolset_changelist", budget="over")
    return [Need(number=len(over_budget()), words="Toolsets over their token budget", url=budgets)]


class BudgetFilter(OptionsFilter):
    title = "token budget"
    parameter_name = "budget"
    options = {"over": ("enabled, and over its budget", lambda: Q(pk__in=over_budget()))}


class ToolsetChangeList(CatalogueChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        catalogue = confirmed_catalogue()
        for toolset in self.result_list:
            toolset.shown = shown_by(toolset, catalogue)
            toolset.cost = tool_lists.cost_of_toolset(toolset, catalogue)


@admin.register(Toolset)
class ToolsetAdmin(ButtonsMixin):
    list_display = ("slug", "address", "mode_shown", "workflows", "tokens_of_list", "bound_tokens", "enabled")
    list_filter = (
        ("mode", ChoicesDropdownFilter), ("portable", BooleanRadioFilter), ("enabled", BooleanRadioFilter),
        BudgetFilter,
    )  # fmt: skip
    list_per_page = 50
    list_before_template = "mcp_bridge/admin/toolset_list.html"
    search_fields = ("slug", "title", "description")
    inlines = (RulesInline,)
    change_form_outer_before_template = "mcp_bridge/admin/toolset_panel.html"
    change_form_outer_after_template = "mcp_bridge/admin/toolset_contents.html"
    fieldsets = (
        (None, {"fields": (("slug", "title"), "description", "enabled")}),
        ("What it shows", {"fields": (("mode", "portable"), "picked")}),
        ("Token budget", {"fields": ("token_budget",)}),
        (
            "Clients",
            {"fields": ("reserved_for", "inline_wait_seconds", ("calls_per_minute", "calls_at_once"))},
        ),
        ("Approval", {"fields": (("approval_required", "approvers_needed"),)}),
    )

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("mcp_bridge/admin/workflow_picker.css",)}
        js = ("mcp_bridge/admin/workflow_picker.js",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Toolset]:
        bound = Count("tokens", filter=Q(tokens__revoked_at=None))
        toolsets: QuerySet[Toolset] = super().get_queryset(request).annotate(bound_count=bound)
        keys = Workflow.objects.only("pk").order_by()
        return toolsets.prefetch_related("rules", Prefetch("picked", queryset=keys))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ToolsetChangeList]:
        return ToolsetChangeList

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        whole = {"whole_url": resource_url(), "whole": tool_lists.cost_of_catalogue(confirmed_catalogue())}
        return super().changelist_view(request, (extra_context or {}) | whole)

    address = column("address", "slug", lambda slug: chip(breakable(resource_url(slug))), sorts=False)
    mode_shown = column("mode", "mode", str)
    workflows = column("workflows", "shown", len, sorts=False)

    @admin.display(description="tokens of its list")
    def tokens_of_list(self, toolset: Any) -> SafeString:
        cost: tool_lists.ToolsetCost = toolset.cost
        return side_by_side([f"about {cost.served.tokens:,}", _budget_badge(cost)])

    @admin.display(description="bound tokens", ordering="bound_count")
    def bound_tokens(self, toolset: Any) -> SafeString:
        return _link_to_tokens(toolset, toolset.bound_count)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "picked":
            # Without Django's links to related objects.
            return db_field.formfield(widget=WorkflowPicker())
        if db_field.name == "reserved_for":
            return ReservedForField(label="Reserved for", help_text=db_field.help_text)
        if db_field.name == "description":
            kwargs["widget"] = widgets.UnfoldAdminTextareaWidget(attrs={"rows": 3})
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def get_urls(self) -> list[URLPattern]:
        guarded = self.admin_site.admin_view
        return [
            path("choices/", guarded(self._choices), name="catalogue_toolset_choices"),
            path("preview/", guarded(self._preview), name="catalogue_toolset_preview_new"),
            path("<int:key>/preview/", guarded(self._preview), name="catalogue_toolset_preview"),
            *super().get_urls(),
        ]

    def _choices(self, request: HttpRequest) -> HttpResponse:
        self._check_may_edit(request)
        return TemplateResponse(request, CHOICES, find_choices(request.GET.get("find_workflows", "")))

    def _preview(self, request: HttpRequest, key: int | None = None) -> HttpResponse:
        self._check_may_edit(request)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        stored = None if key is None else Toolset.objects.filter(pk=key).first()
        form = self.get_form(request, stored, change=stored is not None)(request.POST, instance=stored)
        form.is_valid()
        formset = formsets_of(self, request, form.instance, change=stored is not None)[0]
        formset.is_valid()
        lines = [
            line for line in formset.forms if not line.errors and (line.has_changed() or line.instance.pk)
        ]
        rules = [line.instance for line in lines if not line.cleaned_data.get("DELETE")]
        catalogue = confirmed_catalogue()
        picked = {workflow.pk for workflow in form.cleaned_data.get("picked", ())}
        ordered = sorted(rules, key=lambda rule: (rule.position, rule.pk is None, rule.pk))
        shown = choose(catalogue.workflows.values(), rules=ordered, picked=picked)
        before = shown_by(Toolset.objects.get(pk=stored.pk), catalogue) if stored is not None else {}
        cost = tool_lists.cost_of_proposal(form.instance, shown)
        problems = [problem for line in formset.forms for found in line.errors.values() for problem in found]
        context = {
            "groups": [
                group_of("would be in it", list(shown)),
                group_of("new in it", [name for name in shown if name not in before]),
                group_of("no longer in it", [name for name in before if name not in shown]),
            ],
            "cost": cost,
            "share": min(100, cost.served.tokens * 100 // cost.budget) if cost.budget else None,
            "problems": [f"Rule: {problem}" for problem in problems],
        }
        return TemplateResponse(request, "mcp_bridge/admin/toolset_preview.html", context)

    def _check_may_edit(self, request: HttpRequest) -> None:
        if not (self.has_change_permission(request) or self.has_add_permission(request)):
            raise PermissionDenied

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        stored = context.get("original")
        if self.has_change_permission(request, stored):
            key = [] if stored is None else [stored.pk]
            view = "catalogue_toolset_preview" if key else "catalogue_toolset_preview_new"
            context |= {"preview_url": reverse(f"admin:{view}", args=key)}
        if stored is not None and request.user.has_perm("mcp_bridge.add_accesstoken"):
            address = reverse("admin:mcp_bridge_accesstoken_add", query={"toolset": stored.pk})
            context |= {"make_token_url": address}
        return super().render_change_form(request, context, *args, **kwargs)

    def panel(self, request: HttpRequest, obj: Toolset) -> dict[str, Any]:
        catalogue = confirmed_catalogue()
        cost, count = tool_lists.cost_of_toolset(obj, catalogue), len(shown_by(obj, catalogue))
        return {
            "headline": [_state_badges(obj, cost), cost.warning],
            "facts": [
                ("Address", chip(resource_url(obj.slug))),
                ("Shows", counted(count, "workflow")),
                ("List in full mode", str(cost.full)),
                ("List in compact mode", str(cost.compact)),
                ("Budget", cost.compared),
                ("Bound tokens", _link_to_tokens(obj, len(tokens_bound_to(obj)))),
            ],
            "contents": _contents(obj, catalogue),
            "refused": find_refused(obj, catalogue),
            "configurations": configurations_of(server := server_for_users(obj.slug)),
            "clients_sign_in": server.token is None,
        }

    def find_losses(
        self, objs: Iterable[Toolset], request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        """Bound tokens block deletion; rules are not listed."""
        toolsets = list(objs)
        kept = [
            str(ToolsetInUse(toolset, names)) for toolset in toolsets if (names := tokens_bound_to(toolset))
        ]
        return [f"Toolset: {toolset}" for toolset in toolsets], {"toolsets": len(toolsets)}, set(), kept

    def delete_model(self, request: HttpRequest, obj: Toolset) -> None:
        delete_toolset(obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Toolset]) -> None:
        for toolset in queryset:
            delete_toolset(toolset)


def _state_badges(toolset: Toolset, cost: tool_lists.ToolsetCost) -> SafeString:
    switched = badge("on", "success") if toolset.enabled else badge("disabled: its address answers 404")
    portable = badge("portable", "info") if toolset.portable else ""
    return side_by_side([switched, badge(toolset.mode, "info"), portable, _budget_badge(cost)])


def _budget_badge(cost: tool_lists.ToolsetCost) -> str:
    if cost.budget is None:
        return ""
    if cost.is_over_budget:
        return badge(f"{cost.percent_over:,} % over budget", "warning", title=cost.warning)
    return badge("within budget", "success", title=cost.compared)


def _link_to_tokens(toolset: Toolset, count: int) -> SafeString:
    return link(count, "mcp_bridge_accesstoken_changelist", query=f"?toolset__id__exact={toolset.pk}")


def _contents(toolset: Toolset, catalogue: ExposedCatalogue) -> list[Group]:
    shown = shown_by(toolset, catalogue)
    picked = set(toolset.picked.values_list("tool_name", flat=True))
    return [
        group_of("picked by hand", sorted(picked & shown.keys())),
        group_of("included by its rules", [name for name in shown if name not in picked]),
        group_of("exposed, but not in it", [name for name in catalogue.workflows if name not in shown]),
        group_of("picked by hand, but not exposed", sorted(picked - shown.keys())),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    key: int
    name: str
    description: str
    source: str
    tokens: int | None  # None if its row is invalid
    is_exposed: bool
    is_picked: bool


class WorkflowPicker(forms.SelectMultiple):
    template_name = "mcp_bridge/admin/workflow_picker.html"

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        keys = [key for key in value or () if str(key).isdecimal()]
        picked = Workflow.objects.filter(pk__in=keys)
        return {
            "widget": {"name": name, "attrs": attrs or {}},
            "name": name,
            "choices": _choices_of(list(picked.select_related("source").for_lists()), are_picked=True),
            "input_classes": " ".join(widgets.BASE_INPUT_CLASSES),
            "checkbox_classes": " ".join(widgets.CHECKBOX_CLASSES),
            "choices_template": CHOICES,
        }


def find_choices(text: str) -> dict[str, Any]:
    """Workflows with all words in name, description, tags or source."""
    found = Workflow.objects.present().select_related("source").for_lists()
    for word in text[:MAX_SEARCH].split()[:10]:
        if "*" in word or "?" in word:
            found = found.named_like(word)
        else:
            found = found.matching(word) | found.tagged(word) | found.filter(source__name__icontains=word)
    total = found.count()
    return {
        "choices": _choices_of(list(found[:MAX_SHOWN]), are_picked=False),
        "name": "picked",
        "checkbox_classes": " ".join(widgets.CHECKBOX_CLASSES),
        "total": total,
        "more": max(0, total - MAX_SHOWN),
    }


def _choices_of(workflows: list[Workflow], *, are_picked: bool) -> list[Choice]:
    costs = tool_lists.tokens_by_key([workflow.pk for workflow in workflows])
    exposed = confirmed_catalogue().workflows
    return [
        Choice(
            key=workflow.pk,
            name=workflow.tool_name,
            description=cut_short(workflow.shown_description, SHOWN_DESCRIPTION),
            source=workflow.source.name,
            tokens=costs.get(workflow.pk),
            is_exposed=workflow.tool_name in exposed,
            is_picked=are_picked,
        )
        for workflow in workflows
    ]
