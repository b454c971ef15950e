"""Asking and telling a run something, from the page of its execution."""

import uuid
from functools import partial
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from unfold.widgets import UnfoldAdminTextareaWidget

from catalogue.admin.base import ButtonsMixin
from catalogue.admin.rendering import pretty_json
from catalogue.admin.value_fields import MONOSPACE
from catalogue.database import run_without_connection
from catalogue.inputs import summarise_inputs
from catalogue.interactions import DeclaredInteraction, InteractionKind, interactions_of
from executions.admin.callers import caller_of
from executions.interacting import InteractionRefused, query_execution, signal_execution, why_not_now
from executions.models import Execution
from executions.reading import UnknownExecution

LABELS = {InteractionKind.QUERY: "Ask", InteractionKind.SIGNAL: "Tell"}


class InteractionForm(forms.Form):
    """Whatever the interaction takes, as a JSON object; its schema has the last word."""

    name = forms.CharField(widget=forms.HiddenInput)
    arguments = forms.JSONField(
        required=False,
        initial=dict,
        error_messages={"invalid": "This is no JSON."},
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2, **MONOSPACE}),
    )

    def clean_arguments(self) -> dict[str, Any]:
        arguments = self.cleaned_data["arguments"]
        if arguments is not None and not isinstance(arguments, dict):
            raise forms.ValidationError('This has to be a JSON object, such as {"text": "Hello"}.')
        return arguments or {}


class InteractionsMixin(ButtonsMixin):
    """For the admin of executions."""

    def get_urls(self) -> list[URLPattern]:
        return [
            path(
                f"<uuid:key>/{kind}/",
                self.admin_site.admin_view(partial(self._talk, kind=kind)),
                name=f"executions_execution_{kind}",
            )
            for kind in InteractionKind
        ] + super().get_urls()

    def shown_interactions(self, request: HttpRequest, execution: Execution) -> list[dict[str, Any]]:
        """What this person can ask and tell the run now."""
        if execution.workflow is None:
            return []
        return [
            _shown(one, InteractionForm(initial={"name": one.name}, auto_id=f"{one.kind}-{number}-%s"))
            for number, one in enumerate(interactions_of(execution.workflow))
            if self._may_talk(request, one.kind) and not why_not_now(execution, one.kind)
        ]

    def _may_talk(self, request: HttpRequest, kind: InteractionKind) -> bool:
        if kind == InteractionKind.SIGNAL:
            return self.may_press_buttons(request)
        return self.has_view_permission(request)

    def _talk(self, request: HttpRequest, key: uuid.UUID, kind: InteractionKind) -> HttpResponseBase:
        if not self._may_talk(request, kind):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        execution = Execution.objects.select_related("workflow").filter(pk=key).first()
        if execution is None:
            raise Http404
        form = InteractionForm(request.POST)
        if not form.is_valid():
            return self._answer_page(request, execution, kind, form)
        try:
            return self._carry_out(request, execution, kind, form)
        except UnknownExecution as error:
            raise Http404(str(error)) from None
        except InteractionRefused as error:
            form.add_error(None, str(error))
            return self._answer_page(request, execution, kind, form)

    def _carry_out(
        self, request: HttpRequest, execution: Execution, kind: InteractionKind, form: InteractionForm
    ) -> HttpResponseBase:
        name, arguments, caller = (
            form.cleaned_data["name"],
            form.cleaned_data["arguments"],
            caller_of(request),
        )
        if kind == InteractionKind.QUERY:
            asked = query_execution(str(execution.pk), name, arguments, caller=caller)
            answer = pretty_json(run_without_connection(asked).value)
            return self._answer_page(request, execution, kind, form, answer=answer)
        run_without_connection(signal_execution(str(execution.pk), name, arguments, caller=caller))
        self.log_change(request, execution, f"Told the run “{name}”.")
        messages.success(request, f"The run was told {name}.")
        return HttpResponseRedirect(reverse("admin:executions_execution_change", args=[execution.pk]))

    def _answer_page(
        self,
        request: HttpRequest,
        execution: Execution,
        kind: InteractionKind,
        form: InteractionForm,
        answer: str = "",
    ) -> HttpResponseBase:
        """What came of it, and the form to try again."""
        name = form.cleaned_data.get("name", "")
        declared = interactions_of(execution.workflow, kind) if execution.workflow else []
        asked = next((one for one in declared if one.name == name), None)
        context = self.admin_site.each_context(request) | {
            "title": f"{execution.tool_name}: {LABELS[kind].lower()} {name}",
            "opts": self.opts,
            "execution": execution,
            "answer": answer,
            "problems": [problem for problems in form.errors.values() for problem in problems],
            "interactions": [] if asked is None else [_shown(asked, form)],
        }
        return TemplateResponse(request, "executions/admin/answer.html", context)


def _shown(one: DeclaredInteraction, form: InteractionForm) -> dict[str, Any]:
    is_signal = one.kind == InteractionKind.SIGNAL
    return {
        "kind": one.kind.value,
        "name": one.name,
        "description": one.description,
        "inputs": summarise_inputs(one.schema) if one.schema.get("properties") else "",
        "takes_arguments": one.takes_arguments,
        "is_folded": not one.schema.get("properties") and not form.is_bound,
        "form": form,
        "label": LABELS[one.kind],
        "icon": "campaign" if is_signal else "contact_support",
        "question": f"Send the signal {one.name} to this run?" if is_signal else "",
    }
