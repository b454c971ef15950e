"""Keeping the history of what people, tokens and commands change, for every door."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import models
from django.http import HttpRequest

from catalogue.models import HistoryEntry

if TYPE_CHECKING:
    # Processes without REST start sooner without it.
    from rest_framework.request import Request

LONGEST_NAME = 255


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """Who changes something, and by which door."""

    key: str
    """Such as `user:1` or `token:7`."""
    name: str
    door: HistoryEntry.Door


def actor_of(request: "HttpRequest | Request") -> Actor:
    """A token at REST, else the user of the session."""
    # Only requests at REST say what they were authenticated by.
    door = HistoryEntry.Door.REST if hasattr(request, "auth") else HistoryEntry.Door.ADMIN
    token: Any = getattr(request, "auth", None)
    if token is not None:
        return Actor(key=token.caller.key, name=token.caller.name, door=door)
    return Actor(key=f"user:{request.user.pk}", name=request.user.get_username(), door=door)


def command(name: str) -> Actor:
    """Somebody at the command line."""
    return Actor(key="command", name=f"manage.py {name}", door=HistoryEntry.Door.COMMAND)


def record_change(actor: Actor, objects: Iterable[models.Model], message: str) -> None:
    """Call it in the transaction of the change; for what is deleted, before its key is gone."""
    record_changes(actor, ((obj, message) for obj in objects))


def record_changes(actor: Actor, changes: Iterable[tuple[models.Model, str]]) -> None:
    """The same for objects that each have a message of their own."""
    HistoryEntry.objects.bulk_create(
        [
            HistoryEntry(
                actor=actor.key,
                actor_name=actor.name[:LONGEST_NAME],
                door=actor.door,
                model=HistoryEntry.label_of(type(obj)),
                object_id=str(obj.pk),
                object_name=str(obj)[:LONGEST_NAME],
                message=message,
            )
            for obj, message in changes
        ]
    )


def changed_fields(names: Iterable[str]) -> str:
    """What a change of some fields says; the fields as the door calls them."""
    return f"Changed {', '.join(sorted(names)) or 'nothing'}."
