"""What paused runs ask people, on the page of the run and on a page with a form for the answer."""

import uuid
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.dateparse import parse_datetime
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from catalogue.admin.base import ButtonsMixin
from executions.admin.schema_form import MISSING, SchemaForm, read_posted
from executions.models import Execution
from executions.questions import (
    AnswerRefused,
    UnfitAnswer,
    answer_questions,
    describe_questions,
    find_answerers,
    is_answerer,
    usable_schema,
)


class AnsweringMixin(ButtonsMixin):
    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self._answer)
        return [path("<uuid:key>/answer/", view, name="executions_execution_answer"), *super().get_urls()]

    def shown_questions(self, request: HttpRequest, execution: Execution) -> list[dict[str, Any]]:
        may, page = (
            self._may_answer(request, execution),
            reverse("admin:executions_execution_answer", args=[execution.pk]),
        )
        return [
            {
                **one,
                "until": parse_datetime(one["until"] or ""),
                "address": f"{page}?{urlencode({'question': one['question']})}"
                if may and not one["answered_by"]
                else "",
            }
            for one in describe_questions(execution)
        ]

    def _may_answer(self, request: HttpRequest, execution: Execution) -> bool:
        if find_answerers(execution):
            return is_answerer(execution, request.user)
        return self.may_press_buttons_of(request, execution)

    def _answer(self, request: HttpRequest, key: uuid.UUID) -> HttpResponse:
        execution = get_object_or_404(Execution.objects.select_related("workflow"), pk=key)
        if not self._may_answer(request, execution):
            raise PermissionDenied
        back = HttpResponseRedirect(reverse("admin:executions_execution_change", args=[key]))
        wanted = request.GET.get("question", "")
        question = next((one for one in describe_questions(execution) if one["question"] == wanted), None)
        if question is None:
            self.message_user(request, _("The run no longer asks this."), "warning")
            return back
        is_post = request.method == "POST"
        form = SchemaForm(
            usable_schema(question["schema"]), read_posted(request.POST) if is_post else MISSING
        )
        change = request.POST.get("change", "show" if "HX-Request" in request.headers else None)
        if is_post and change is None:
            try:
                if self._send_answer(request, execution, wanted, form):
                    self.message_user(request, _("The answer is on its way to the engine."), "success")
                    return back
            except AnswerRefused as error:
                self.message_user(request, str(error), "error")
                return back
            if form.wrong:
                form.focus_on(form.wrong[0])
        elif is_post and change is not None:
            form.change(change)
        context = self.admin_site.each_context(request) | {
            "title": _("%(tool)s waits for a person's answer") % {"tool": execution.tool_name},
            "execution": execution,
            "question": question | {"until": parse_datetime(question["until"] or "")},
            "form": form,
            "is_refused": is_post and change is None,
        }
        return TemplateResponse(request, "executions/admin/answer_question.html", context)

    def _send_answer(
        self, request: HttpRequest, execution: Execution, question: str, form: SchemaForm
    ) -> bool:
        """False if the form shows what is wrong. Raises AnswerRefused."""
        content = form.read()
        form.check_formats()
        if form.wrong:
            return False
        by, door = request.user.get_username(), Execution.Door.ADMIN
        try:
            answer_questions(execution, {question: content}, by=by, door=door, user=request.user)
        except UnfitAnswer as error:
            for problem in error.problems:
                form.blame(problem.path, problem.message)
            return False
        self.log_change(request, execution, "Answered what it asked.")
        return True
