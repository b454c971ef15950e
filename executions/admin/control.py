"""The buttons of an execution's page that retry, pause, resume and terminate it."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from access.callers import Caller
from catalogue.admin.base import Button, ButtonsMixin, button
from catalogue.database import run_without_connection
from executions.admin.page import caller_of
from executions.admin.running import MAY_RUN, MAY_TEST, may_run
from executions.control import Action, control_run, possible_actions, prepare_retry
from executions.interacting import InteractionRefused
from executions.models import Execution
from executions.reading import UnknownExecution
from executions.refusals import StartRefused
from executions.starting import create_execution
from executions.wakeups import request_poll


def _acts(action: Action, label: Any, **looks: Any) -> Any:
    def act(self: "ControlMixin", request: HttpRequest, obj: Execution) -> HttpResponseRedirect | None:
        return self.act(request, obj, action)

    act.__name__ = action
    return button(label, **looks)(act)


class ControlMixin(ButtonsMixin):
    def get_buttons(self, request: HttpRequest, obj: Any) -> list[Button]:
        if not (buttons := super().get_buttons(request, obj)):
            return []
        possible = {str(one) for one in possible_actions(obj) if not one.starts or may_run(request)}
        if not obj.is_settled:
            possible.add("cancel")
        return [one for one in buttons if one.name in possible]

    retry = _acts(Action.RETRY, _("Retry"), icon="replay", records=True, confirm=_("Run all of it again?"))
    retry_failed = _acts(
        Action.RETRY_FAILED,
        _("Retry from the failed step"),
        icon="resume",
        records=True,
        confirm=_("Run its failed steps again?"),
    )
    pause = _acts(Action.PAUSE, _("Pause"), icon="pause")
    resume = _acts(Action.RESUME, _("Resume"), icon="play_arrow")
    terminate = _acts(
        Action.TERMINATE,
        _("Terminate"),
        icon="stop_circle",
        variant="danger",
        confirm=_("End the run at once, without letting it clean up?"),
    )

    def act(self, request: HttpRequest, execution: Execution, action: Action) -> HttpResponseRedirect | None:
        caller = caller_of(request)
        try:
            if action.starts:
                return self._retry(request, execution, action, caller)
            controlling = control_run(str(execution.pk), action, caller=caller, door=Execution.Door.ADMIN)
            messages.info(request, run_without_connection(controlling)[1])
        except (InteractionRefused, StartRefused, UnknownExecution) as error:
            messages.error(request, str(error))
        return None

    def _retry(
        self, request: HttpRequest, execution: Execution, action: Action, caller: Caller
    ) -> HttpResponseRedirect:
        if not may_run(request):
            raise PermissionDenied
        has, doors = request.user.has_perm, Execution.Door
        preparing = prepare_retry(
            str(execution.pk),
            action,
            caller=caller,
            door=doors.ADMIN if has(MAY_RUN) else doors.TEST,
            may_be_hidden=has(MAY_TEST),
            in_any_toolset=True,
        )
        started = create_execution(run_without_connection(preparing))
        request_poll()
        self.log_change(request, execution, f"Run again as execution {started.pk}.")
        return HttpResponseRedirect(reverse("admin:executions_execution_change", args=[started.pk]))
