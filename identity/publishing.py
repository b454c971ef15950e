"""Publishing workflows to a team: a toolset, what it exposes, and a token for its clients, in one step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction

from catalogue.actions.publishing import publish_workflows
from catalogue.actions.toolsets import write_toolset
from catalogue.history import Actor, record_change
from catalogue.models import Toolset
from identity.models import AccessToken
from identity.tokens import create_token


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    toolset: Toolset
    enabled: int  # How many workflows were hidden before
    token: AccessToken | None
    text: str | None  # Of the token; it is not stored


@transaction.atomic
def publish_to_team(
    seen: Mapping[int, str],
    *,
    toolset: Toolset | None,
    new_toolset: Mapping[str, Any],
    only_there: bool,
    token: Mapping[str, Any] | None,
    made_by: User,
    by: Actor,
) -> Published:
    """Everything or nothing. `seen`: the content hashes that the curator saw, by key. `new_toolset`: the
    toolset to create if `toolset` is None. `token`: one bound to it, which its maker owns; None: no token.
    Raises ValidationError, where `token_name` stands for the token's name."""
    if toolset is None:
        toolset = write_toolset(Toolset(), **new_toolset)
        record_change(by, [toolset], "Added.")
    enabled = publish_workflows(toolset, seen, only_there=only_there, by=by)
    if token is None:
        return Published(toolset=toolset, enabled=enabled, token=None, text=None)
    try:
        row, text = create_token(**token, toolset=toolset, owner=made_by, created_by=made_by)
    except ValidationError as problem:
        errors: dict[str, Any] = problem.message_dict
        raise ValidationError(
            {{"name": "token_name"}.get(name, name): errors[name] for name in errors}
        ) from None
    record_change(by, [row], "Added.")
    return Published(toolset=toolset, enabled=enabled, token=row, text=text)
