import json
from collections.abc import Iterable, Set
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Prefetch, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold import widgets
from unfold.contrib.filters.admin import BooleanRadioFilter, ChoicesDropdownFilter
from unfold.decorators import display

from catalogue.actions.publishing import MAX_PUBLISHED, plan_publication
from catalogue.admin.base import ButtonsMixin, CatalogueChangeList, CatalogueForm, OptionsFilter, column
from catalogue.admin.form_fields import ReservedForField
from catalogue.admin.rendering import group_of, link
from catalogue.admin.workflow_picker import MAX_SHOWN, Choice, WorkflowPicker
from catalogue.compat import formsets_of
from catalogue.exposure import ExposedCatalogue, Workflows, choose, confirmed_catalogue, shown_by
from catalogue.long_lists import read_key
from catalogue.models import Toolset, ToolsetRule, Workflow
from catalogue.search_terms import search_workflows
from executions.inbox import Row, address
from identity.client_configuration import configurations_of, server_for_users
from identity.tokens import ToolsetInUse, delete_toolset, resource_url, tokens_bound_to
from mcp_bridge import tool_lists
from mcp_bridge.admin import publishing
from mcp_bridge.portability import find_refused

if TYPE_CHECKING:
    RuleInline = admin.TabularInline[ToolsetRule, Toolset]
    RuleModelFormSet = forms.BaseInlineFormSet[Any, Any, Any]
else:
    from django.forms import BaseInlineFormSet as RuleModelFormSet
    from unfold.admin import TabularInline as RuleInline

POSITIONS_APART = 10
NARROWEST = {"action": "7rem", "syntax": "11rem"}  # Columns of rules that would cut off their choices


class RuleForm(CatalogueForm):
    position = forms.IntegerField(
        required=False,
        min_value=0,
        widget=widgets.UnfoldAdminIntegerFieldWidget(attrs={"style": "max-width: 6rem"}),
        help_text=gettext_lazy(
            "Rules with lower positions come first, and the first match decides. If empty, the rule "
            "comes last."
        ),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["position"].widget.attrs["aria-label"] = _("Position of the rule")
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
    verbose_name = gettext_lazy("rule")
    verbose_name_plural = gettext_lazy(
        "Rules: which exposed workflows it contains besides those picked by hand"
    )

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
            field.widget.attrs["aria-label"] = capfirst(_("%s of the rule") % db_field.verbose_name)
        return field


def over_budget() -> list[int]:
    """Keys of enabled toolsets over their token budget."""
    budgeted = Toolset.objects.filter(token_budget__isnull=False, enabled=True)
    catalogue, cost_of = confirmed_catalogue(), tool_lists.cost_of_toolset
    return [toolset.pk for toolset in budgeted if cost_of(toolset, catalogue).is_over_budget]


def toolset_rows() -> list[Row]:
    budgets = address("admin:catalogue_toolset_changelist", budget="over")
    words, number = _("Toolsets over their token budget"), len(over_budget())
    return [Row(key="toolset-budgets", number=number, words=words, url=budgets)]


class BudgetFilter(OptionsFilter):
    title = gettext_lazy("token budget")
    parameter_name = "budget"
    options = {"over": (gettext_lazy("enabled, and over its budget"), lambda: Q(pk__in=over_budget()))}


class ToolsetChangeList(CatalogueChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        catalogue = confirmed_catalogue()
        for toolset in self.result_list:
            toolset.shown = shown_by(toolset, catalogue)
            toolset.cost = tool_lists.cost_of_toolset(toolset, catalogue)


def _about(tokens: int) -> str:
    return _("about %s") % f"{tokens:,}"


@admin.register(Toolset)
class ToolsetAdmin(ButtonsMixin):
    list_display = (
        "name", "address", "mode_shown", "workflows", "tokens_of_list", "budget", "bound_tokens", "enabled",
    )  # fmt: skip
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
        (gettext_lazy("What it shows"), {"fields": (("mode", "portable", "cards"), "picked")}),
        (gettext_lazy("Token budget"), {"fields": ("token_budget",)}),
        (
            gettext_lazy("Clients"),
            {"fields": ("reserved_for", "inline_wait_seconds", ("calls_per_minute", "calls_at_once"))},
        ),
        (gettext_lazy("Approval"), {"fields": (("approval_required", "approvers_needed"),)}),
    )

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
        cost = tool_lists.cost_of_catalogue(confirmed_catalogue())
        whole = {"url": resource_url(), "full": _in_words(cost.full), "compact": _in_words(cost.compact)}
        return super().changelist_view(request, (extra_context or {}) | {"whole": whole})

    name = column(gettext_lazy("toolset"), "slug", str)
    address = column(gettext_lazy("address"), "slug", resource_url, sorts=False)
    mode_shown = column(gettext_lazy("mode"), "mode", str)
    workflows = column(gettext_lazy("workflows"), "shown", len, sorts=False)

    tokens_of_list = column(gettext_lazy("tokens of its list"), "cost.served.tokens", _about, sorts=False)

    @admin.display(description=gettext_lazy("bound tokens"), ordering="bound_count")
    def bound_tokens(self, toolset: Any) -> Any:
        query = f"?toolset__id__exact={toolset.pk}"
        return link(toolset.bound_count, "mcp_bridge_accesstoken_changelist", query=query)

    @display(  # type: ignore[untyped-decorator]
        description=gettext_lazy("budget"), label={"over": "warning", "within": "success"}
    )
    def budget(self, toolset: Any) -> tuple[str, str]:
        return _compared_with_budget(toolset.cost)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "picked":
            # Without Django's links to related objects.
            return db_field.formfield(widget=PickedWorkflows())
        if db_field.name == "reserved_for":
            return ReservedForField(label=gettext_lazy("Reserved for"), help_text=db_field.help_text)
        if db_field.name == "slug":
            kwargs["label"] = _("Address")
        if db_field.name == "description":
            kwargs["widget"] = widgets.UnfoldAdminTextareaWidget(attrs={"rows": 3})
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def get_urls(self) -> list[URLPattern]:
        guarded = self.admin_site.admin_view
        return [
            path("choices/", guarded(self._choices), name="catalogue_toolset_choices"),
            path("preview/", guarded(self._preview), name="catalogue_toolset_preview_new"),
            path("<int:key>/preview/", guarded(self._preview), name="catalogue_toolset_preview"),
            *publishing.urls(self.admin_site),
            *super().get_urls(),
        ]

    def _choices(self, request: HttpRequest) -> HttpResponse:
        self._check_may_edit(request)
        return PickedWorkflows().show_found(request)

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
        picks = {workflow.pk: workflow.tool_name for workflow in form.cleaned_data.get("picked", ())}
        ordered = sorted(rules, key=lambda rule: (rule.position, rule.pk is None, rule.pk))
        shown = choose(catalogue.workflows.values(), rules=ordered, picked=picks.keys())
        before = shown_by(Toolset.objects.get(pk=stored.pk), catalogue) if stored is not None else {}
        cost = tool_lists.cost_of_proposal(form.instance, shown)
        problems = [problem for line in formset.forms for found in line.errors.values() for problem in found]
        context = _describe_contents(shown, set(picks.values()), cost) | {
            "problems": [_("Rule: %s") % problem for problem in problems],
            "changes": [
                group_of(_("new in it"), [name for name in shown if name not in before]),
                group_of(_("no longer in it"), [name for name in before if name not in shown]),
            ],
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
        shown, picked = shown_by(obj, catalogue), dict(obj.picked.values_list("tool_name", "pk"))
        cost = tool_lists.cost_of_toolset(obj, catalogue)
        count = ngettext("%(count)s workflow", "%(count)s workflows", len(shown))
        return _describe_contents(shown, picked.keys(), cost) | {
            "headline": [_advice(cost)],
            "budget": _compared_with_budget(cost),
            "facts": [
                (_("Address"), resource_url(obj.slug)),
                (_("Shows"), count % {"count": f"{len(shown):,}"}),
                (_("List in full mode"), _in_words(cost.full)),
                (_("List in compact mode"), _in_words(cost.compact)),
                (_("Budget"), _compared(cost)),
            ],
            "bound": tokens_bound_to(obj),
            "unexposed": _unexposed(request, picked, catalogue),
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
        return (
            [_("Toolset: %s") % toolset for toolset in toolsets],
            {_("toolsets"): len(toolsets)},
            set(),
            kept,
        )

    def delete_model(self, request: HttpRequest, obj: Toolset) -> None:
        delete_toolset(obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Toolset]) -> None:
        for toolset in queryset:
            delete_toolset(toolset)


# What the costs say of themselves stands in logs, too, and stays English there.


def _in_words(cost: tool_lists.ListCost) -> str:
    tools = ngettext("%(count)s tool", "%(count)s tools", cost.tools) % {"count": f"{cost.tools:,}"}
    return _("%(tools)s, %(characters)s characters, about %(tokens)s tokens") % {
        "tools": tools,
        "characters": f"{cost.characters:,}",
        "tokens": f"{cost.tokens:,}",
    }


def _compared(cost: tool_lists.ToolsetCost) -> str:
    """Empty without a budget."""
    if cost.budget is None:
        return ""
    shown = {"tokens": f"{cost.served.tokens:,}", "budget": f"{cost.budget:,}"}
    if not cost.is_over_budget:
        return _("%(tokens)s of %(budget)s tokens") % shown
    return _("%(tokens)s of %(budget)s tokens: %(percent)s %% over") % {
        **shown,
        "percent": f"{cost.percent_over:,}",
    }


def _advice(cost: tool_lists.ToolsetCost) -> str:
    """Empty within the budget."""
    if cost.budget is None or not cost.is_over_budget:
        return ""
    if cost.compact.tokens > cost.budget:
        told = _("%(compared)s; raise the budget, because the built-in tools alone take %(tokens)s")
    else:
        told = _("%(compared)s; switch it to compact mode or remove workflows")
    return told % {"compared": _compared(cost), "tokens": f"{cost.compact.tokens:,}"}


def _compared_with_budget(cost: tool_lists.ToolsetCost) -> tuple[str, str]:
    """A key and its words; empty without a budget."""
    if cost.budget is None:
        return "", ""
    return (
        ("over", _("%(percent)s %% over budget") % {"percent": f"{cost.percent_over:,}"})
        if cost.is_over_budget
        else ("within", _("within budget"))
    )


def _describe_contents(shown: Workflows, picked: Set[str], cost: tool_lists.ToolsetCost) -> dict[str, Any]:
    hidden = sorted(picked - shown.keys())
    return {
        "count": len(shown),
        "cost": cost,
        "served": _in_words(cost.served),
        "compared": _compared(cost),
        "share": min(100, cost.served.tokens * 100 // cost.budget) if cost.budget else None,
        "hidden": len(hidden),
        "groups": [
            group_of(_("picked by hand"), sorted(picked & shown.keys())),
            group_of(_("included by its rules"), [name for name in shown if name not in picked]),
            group_of(_("picked by hand, but not exposed"), hidden),
        ],
    }


def _unexposed(request: HttpRequest, picked: dict[str, int], catalogue: ExposedCatalogue) -> dict[str, Any]:
    """The picks that enabling would expose, with their content hashes; empty for users who may not do it."""
    if not publishing.may_publish(request.user):
        return {}
    hidden = [key for name, key in picked.items() if name not in catalogue.workflows]
    added = plan_publication(hidden[:MAX_PUBLISHED]).added
    seen = {workflow.pk: workflow.content_hash for workflow in added}
    return {"count": len(added), "seen": json.dumps(seen)} if added else {}


class PickedWorkflows(WorkflowPicker):
    field = "picked"
    view = "admin:catalogue_toolset_choices"

    def find(self, text: str) -> tuple[Iterable[Workflow], int]:
        found = search_workflows(Workflow.objects.present(), text)
        return found.select_related("source").for_lists()[:MAX_SHOWN], found.count()

    def find_picked(self, values: Iterable[Any]) -> Iterable[Workflow]:
        keys = [key for key in values if read_key(key) is not None]
        picked = Workflow.objects.filter(pk__in=keys)
        return picked.select_related("source").for_lists()

    def choices_of(self, workflows: Iterable[Workflow]) -> list[Choice]:
        rows, catalogue = list(workflows), confirmed_catalogue()
        runnable, keys = catalogue.runnable, {workflow.pk for workflow in rows}
        costs = tool_lists.tokens_of(runnable[key] for key in keys & runnable.keys())
        costs |= tool_lists.tokens_by_key(keys - runnable.keys())
        return [
            Choice(
                workflow=one,
                key=one.pk,
                tokens=costs.get(one.pk),
                is_exposed=one.tool_name in catalogue.workflows,
            )
            for one in rows
        ]
