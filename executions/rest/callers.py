"""Who calls by REST."""

from dataclasses import replace
from typing import Any

from rest_framework.request import Request

from catalogue.permissions import is_administrator
from executions.callers import Caller


def caller_of(request: Request) -> Caller:
    """A token calls in its own name, a member of staff in theirs."""
    token: Any = request.auth
    if token is not None:
        caller: Caller = token.caller
        return replace(caller, sees_everything=is_administrator(request))
    user: Any = request.user
    return Caller(key=f"user:{user.pk}", name=user.get_username(), sees_everything=is_administrator(request))
