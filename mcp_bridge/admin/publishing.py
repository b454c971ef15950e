"""Publish a selection of workflows to a team: one page, one button, and what its clients need."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, time
from functools import wraps
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.text import slugify
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST
from unfold import widgets

from catalogue.actions.publishing import MAX_PUBLISHED, plan_publication
from catalogue.admin.form_fields import ReservedForField, switch, text_field
from catalogue.admin.workflow_page import SEEN
from catalogue.exposure import confirmed_catalogue, shown_by
from catalogue.history import actor_of
from catalogue.long_lists import read_key
from catalogue.models import Toolset, Workflow
from identity.client_configuration import HttpServer, configurations_of, server_for_users
from identity.publishing import Published, publish_to_team
from identity.tokens import Expiry, authorization_server, resource_url, usual_expiry
from mcp_bridge.tool_lists import cost_of_proposal
from mcp_bridge.trial import TrialFailed, try_endpoint

TOKEN, SIGN_IN, LATER = "token", "sign_in", "later"  # How clients connect
MAY_CREATE_TOKENS = "mcp_bridge.add_accesstoken"


def may_publish(user: Any) -> bool:
    """Returns whether the user may enable workflows, and add them to some toolset."""
    may_write = user.has_perm("catalogue.add_toolset") or user.has_perm("catalogue.change_toolset")
    return bool(user.has_perm("catalogue.change_workflow") and may_write)


def read_seen(text: Any) -> dict[int, str]:
    """Returns the content hashes that the page showed, by key; empty if it is not the page's field."""
    try:
        seen = json.loads(text or "")
        return {int(key): str(seen[key]) for key in seen}
    except (TypeError, ValueError, LookupError):
        return {}


class PublicationForm(forms.Form):
    """Its errors have the names of the fields that `publish_to_team` refuses."""

    seen = forms.CharField(widget=forms.HiddenInput)
    toolset = forms.ModelChoiceField(
        Toolset.objects.none(),
        label=gettext_lazy("Toolset"),
        required=False,
        widget=widgets.UnfoldAdminSelectWidget(attrs={"x-model.fill": "toolset"}),
    )
    title = text_field(gettext_lazy("Title"), gettext_lazy("For people, such as Finance."))
    slug = text_field(
        gettext_lazy("Address"),
        gettext_lazy("The end of its address. If empty, it is made from the title."),
        length=64,
    )
    reserved_for = ReservedForField(
        label=gettext_lazy("Reserved for"),
        help_text=gettext_lazy(
            "Only these users and groups, their tokens and their applications. Empty: all."
        ),
    )
    only_there = switch(
        gettext_lazy("Expose new ones only there"),
        gettext_lazy(
            "Hidden workflows become visible in toolsets, and not at /mcp. Tokens for /mcp can still use the "
            "address of this toolset; reserve it to keep them out."
        ),
        initial=True,
    )
    ticked = forms.TypedMultipleChoiceField(coerce=int, required=False)
    connect = forms.ChoiceField(
        label=gettext_lazy("How its clients connect"),
        widget=widgets.UnfoldAdminRadioSelectWidget(attrs={"x-model.fill": "connect"}),
    )
    token_name = text_field(gettext_lazy("Name of the token"), "", length=100)
    expires_at = forms.DateField(
        label=gettext_lazy("Expires on"),
        required=False,
        widget=widgets.UnfoldAdminTextInputWidget(attrs={"type": "date"}),
    )

    def __init__(self, user: Any, data: Any = None, **options: Any) -> None:
        super().__init__(data, **options)
        toolset = cast("forms.ModelChoiceField[Toolset]", self.fields["toolset"])
        if user.has_perm("catalogue.change_toolset"):
            toolset.queryset = Toolset.objects.filter(enabled=True)
        toolset.empty_label = _("A new toolset") if user.has_perm("catalogue.add_toolset") else None
        toolset.required = toolset.empty_label is None
        ways = [(TOKEN, _("With a new token"))] if user.has_perm(MAY_CREATE_TOKENS) else []
        if authorization_server() is not None:
            ways.append((SIGN_IN, _("Their users sign in through the browser")))
        ways.append((LATER, _("With tokens that exist")))
        connect = cast("forms.ChoiceField", self.fields["connect"])
        connect.choices, connect.initial = ways, ways[0][0]
        usual = usual_expiry()
        self.fields["expires_at"].help_text = _("If empty: {:%Y-%m-%d}.").format(usual)
        ticked = cast("forms.TypedMultipleChoiceField", self.fields["ticked"])
        ticked.choices = [(key, key) for key in read_seen(self["seen"].value())]

    def clean_seen(self) -> dict[int, str]:
        if seen := read_seen(self.cleaned_data["seen"]):
            return seen
        raise ValidationError(_("Select the workflows in the list again."))

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        if given.get("toolset") is None and not given.get("slug"):
            given["slug"] = slugify(given.get("title", ""))[:64]
            if not given["slug"] and not self.errors.keys() & {"toolset", "slug"}:
                self.add_error("slug", _("Enter a title or an address of lower-case letters and digits."))
        if given.get("connect") == TOKEN and not given.get("token_name"):
            self.add_error("token_name", _("Name the token after the client that uses it."))
        return given

    @property
    def token(self) -> dict[str, Any] | None:
        if self.cleaned_data["connect"] != TOKEN:
            return None
        ends: Any = Expiry.USUAL
        if day := self.cleaned_data["expires_at"]:
            ends = datetime.combine(day, time.max, tzinfo=UTC)
        return {"name": self.cleaned_data["token_name"], "expires_at": ends}


@admin.action(description=gettext_lazy("Publish to a team…"))
def publish_selected(pages: Any, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
    """Shows the page for the selected workflows, with the content hashes that the list showed."""
    current = dict(queryset.order_by().values_list("pk", "content_hash")[: MAX_PUBLISHED + 1])
    if len(current) > MAX_PUBLISHED:
        told = _("At most {} workflows can be published at once. For more, give a toolset a rule.")
        messages.warning(request, told.format(MAX_PUBLISHED))
        return None
    seen = {key: request.POST.get(f"{SEEN}-{key}", content_hash) for key, content_hash in current.items()}
    return _show_form(request, PublicationForm(request.user, initial={"seen": json.dumps(seen)}))


def offer_publishing(request: HttpRequest) -> Any:
    """Returns the action for the list of workflows; None for users who may not publish."""
    return publish_selected if may_publish(request.user) else None


def _for_publishers(view: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    @wraps(view)
    def guarded(request: HttpRequest) -> HttpResponse:
        if not may_publish(request.user):
            raise PermissionDenied
        return view(request)

    return guarded


def urls(site: admin.AdminSite) -> list[URLPattern]:
    guarded = site.admin_view
    return [
        path("publish/", guarded(never_cache(_publish)), name="catalogue_toolset_publish"),
        path("publish/begin/", guarded(_begin), name="catalogue_toolset_publish_begin"),
        path("publish/preview/", guarded(_preview), name="catalogue_toolset_publish_preview"),
        path("publish/test/", guarded(never_cache(_try)), name="catalogue_toolset_publish_test"),
    ]


@_for_publishers
@require_POST
def _begin(request: HttpRequest) -> HttpResponse:
    """Shows the form for workflows that another page names, with the content hashes that it showed."""
    begin = {"seen": request.POST.get("seen"), "toolset": request.POST.get("toolset"), "connect": LATER}
    return _show_form(request, PublicationForm(request.user, initial=begin))


@_for_publishers
def _publish(request: HttpRequest) -> HttpResponse:
    """Everything in one transaction; then the token, which is shown without a redirect."""
    if request.method != "POST":
        return HttpResponseRedirect(reverse("admin:catalogue_workflow_changelist"))
    form = PublicationForm(request.user, request.POST)
    if not form.is_valid():
        return _show_form(request, form)
    given = form.cleaned_data
    plan = plan_publication(given["seen"])
    undecided = {workflow.pk for workflow in plan.flagged} - set(given["ticked"])
    seen = {one.pk: given["seen"][one.pk] for one in plan.offered if one.pk not in undecided}
    if not seen:
        form.add_error(None, _("Nothing would be in the toolset. Tick at least one workflow."))
        return _show_form(request, form)
    try:
        published = publish_to_team(
            seen,
            toolset=given["toolset"],
            new_toolset={name: given[name] for name in ("title", "slug", "reserved_for")},
            only_there=given["only_there"],
            token=form.token,
            made_by=cast("User", request.user),
            by=actor_of(request),
        )
    except ValidationError as problem:
        errors = problem.message_dict if hasattr(problem, "error_dict") else {"": problem.messages}
        for name, told in errors.items():
            form.add_error(name if name in form.fields else None, told)
        return _show_form(request, form)
    return _show_result(request, published, count=len(seen), signs_in=given["connect"] == SIGN_IN)


def _show_form(request: HttpRequest, form: PublicationForm) -> HttpResponse:
    context = (
        admin.site.each_context(request)
        | _plan_of(form)
        | {
            "title": _("Publish to a team"),
            "opts": Toolset._meta,
            "form": form,
        }
    )
    return TemplateResponse(request, "mcp_bridge/admin/publish.html", context)


def _plan_of(form: PublicationForm) -> dict[str, Any]:
    """What the form, complete or not, would do."""
    plan = plan_publication(read_seen(form["seen"].value()))
    form.is_valid()
    given = getattr(form, "cleaned_data", {})
    ticked = set(given.get("ticked", ()))
    undecided = [workflow for workflow in plan.flagged if workflow.pk not in ticked]
    chosen = [one for one in plan.offered if one not in undecided]
    toolset = (
        given.get("toolset") or Toolset.objects.filter(pk=read_key(form["toolset"].value()) or 0).first()
    )
    slug = toolset.slug if toolset else given.get("slug") or "…"
    present = {} if toolset is None else dict(shown_by(toolset, confirmed_catalogue()))
    shown = dict(sorted((present | {one.tool_name: one for one in chosen}).items()))
    return {
        "plan": plan,
        "ticked": ticked,
        "undecided": undecided,
        "newly": [one for one in plan.added if one not in undecided],
        "toolset": toolset,
        "address": resource_url(slug),
        "only_there": form["only_there"].value(),
        "cost": cost_of_proposal(toolset or Toolset(slug="new"), shown),
        "count": len(shown),
    }


@_for_publishers
@require_POST
def _preview(request: HttpRequest) -> HttpResponse:
    form = PublicationForm(request.user, request.POST)
    return TemplateResponse(request, "mcp_bridge/admin/publish_preview.html", _plan_of(form))


def _show_result(request: HttpRequest, published: Published, *, count: int, signs_in: bool) -> HttpResponse:
    slug = published.toolset.slug
    server = server_for_users(slug)
    if published.text is not None:
        server = HttpServer(token=published.text, toolset=slug)
    context = admin.site.each_context(request) | {
        "title": _("Published to {}").format(published.toolset.title or slug),
        "opts": Toolset._meta,
        "toolset": published.toolset,
        "address": resource_url(slug),
        "count": count,
        "enabled": published.enabled,
        "token": published.text,
        "token_row": published.token,
        "signs_in": signs_in,
        "with_token": server.token is not None,
        "configurations": configurations_of(server),
    }
    return TemplateResponse(request, "mcp_bridge/admin/published.html", context)


@_for_publishers
@require_POST
def _try(request: HttpRequest) -> HttpResponse:
    """Calls the endpoint with the token that the page shows; nothing keeps it."""
    toolset = Toolset.objects.filter(slug=request.POST.get("slug", "")).first()
    shown: dict[str, Any] = {}
    try:
        if toolset is None:
            raise TrialFailed(_("The toolset no longer exists."))
        shown["trial"] = try_endpoint(toolset.slug, request.POST.get("token", ""))
    except TrialFailed as problem:
        shown["problem"] = str(problem)
    return TemplateResponse(request, "mcp_bridge/admin/trial.html", shown)
