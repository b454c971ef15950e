"""Notifies where a call asked for it: when its run waits for approval, is decided, unconfirmed, or has ended.

A row of RunNotice has the state that was told last. It is due while the execution is in another one that is
told: so nothing is to be done where states change, and what changes while a receiver is away is told as it is
then.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock
from typing import Any

import httpx2
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db.models import F, Min, Q, QuerySet
from django.utils import timezone

from access.callers import Caller
from catalogue.database import run_without_connection
from connectors.errors import Misconfigured
from connectors.network.policy import AddressPolicy, endpoint_url, http_tool_addresses, port_of
from connectors.network.redaction import printable, shorten
from executions import notices, subscriptions
from executions.models import ACTIVE, FINAL, RunNotice, State
from executions.questions import page_of_run
from executions.refusals import UnusableNotice, counting_refusals

Medium = RunNotice.Medium
FORMATS = [medium.value for medium in Medium if medium != Medium.EMAIL]
MEMBERS = {"webhook", "format", "secret", "email"}
MAX_ADDRESS, MAX_SECRET = 2_000, 200
RESOLVING_SECONDS = 2.0  # A name that is not known by then is judged when the message is sent
KINDS = {State.UNAPPROVED: "run.unapproved", State.UNCONFIRMED: "run.unconfirmed"}
_turn = Lock()


@counting_refusals()
def read_notices(asked: Any, caller: Caller) -> list[RunNotice]:
    """Makes the rows of what a call asks for: `webhook`, an address, with `format` and `secret`, and `email`,
    true; at least one of the two. Raises UnusableNotice."""
    if not isinstance(asked, dict) or asked.keys() - MEMBERS:
        raise UnusableNotice(f"the members can be {', '.join(sorted(MEMBERS))}.")
    rows = [_for_webhook(asked, caller)] if asked.get("webhook") else []
    if asked.get("email") not in (None, False):
        user = (
            get_user_model().objects.filter(pk=caller.user_id or 0, is_active=True).exclude(email="").first()
        )
        if asked["email"] is not True or not settings.EMAIL_HOST or user is None:
            raise UnusableNotice("email is true; it needs a mail server, and a user behind the caller.")
        rows.append(RunNotice(medium=Medium.EMAIL, receiver=user.get_username(), user=user))
    if not rows:
        raise UnusableNotice("give the address of a webhook, or true as email.")
    return rows


def _for_webhook(asked: dict[str, Any], caller: Caller) -> RunNotice:
    address, medium, secret = asked["webhook"], asked.get("format") or FORMATS[0], asked.get("secret") or ""
    texts = isinstance(address, str) and isinstance(secret, str)
    if not texts or len(address) > MAX_ADDRESS or len(secret) > MAX_SECRET or medium not in FORMATS:
        raise UnusableNotice(f"address and secret are short texts, and the format is one of {FORMATS}.")
    if secret and not notices.is_key(secret):
        raise UnusableNotice(f"the secret is no key of at least {notices.MIN_KEY} bytes.")
    policy = http_tool_addresses()  # As a model may have written it
    try:
        url = httpx2.URL(endpoint_url(address, policy=policy, may_have_query=True))
        run_without_connection(_judge(policy, url))
    except Misconfigured as error:
        raise UnusableNotice(error.message) from None
    except ValueError as error:
        raise UnusableNotice(str(error)) from None
    row = RunNotice(medium=medium, receiver=url.host[:255], user_id=caller.user_id)
    row.target = {"address": str(url), "secret": secret}
    return row


async def _judge(policy: AddressPolicy, url: httpx2.URL) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(RESOLVING_SECONDS):
            await policy.check_for_proxy(url.host, port_of(url))


def _with_news() -> QuerySet[RunNotice]:
    is_told = Q(execution__state__in=[*KINDS, *FINAL]) & ~Q(told=F("execution__state"))
    is_approved = Q(told=State.UNAPPROVED, execution__state__in=ACTIVE)
    return RunNotice.objects.filter(is_told | is_approved).select_related("execution", "user")


def send_due(*, seconds: float) -> int:
    """Returns how many were sent; begins none after so many seconds."""
    return notices.send_all(_destinations, seconds=seconds, turn=_turn)


def _destinations() -> Iterable[notices.Destination]:
    waiting = _with_news().filter(sent_at=None, given_up_at=None, next_attempt_at__lte=timezone.now())
    # First attempts first: a caller's receivers that hang do not hold up those of others.
    found = (
        waiting.order_by().values("receiver").annotate(tries=Min("attempts"), since=Min("next_attempt_at"))
    )
    for receiver in found.order_by("tries", "since").values_list("receiver", flat=True)[: notices.AT_ONCE]:
        yield notices.Destination(receiver, _with_news().filter(receiver=receiver), send)


def send(notice: RunNotice) -> None:
    """Raises NotSent."""
    run, user = notice.execution, notice.user
    if user is not None and not user.is_active:
        raise notices.NotSent("The user behind the call is disabled.")
    # Texts of engines are hostile: they stay on one line, without control characters.
    error = " ".join(shorten(printable(run.error), subscriptions.MAX_ERROR).split())
    part = subscriptions.Part(
        f"{run.tool_name}: {run.state_label}", [error] if error else [], page_of_run(run)
    )
    kind: Any = KINDS.get(State(run.state), "run.approved" if run.state in ACTIVE else "run.ended")
    document = {"type": kind, "timestamp": notice.created_at.isoformat()}
    document["data"] = subscriptions.describe_run(run)
    policy, message_id = http_tool_addresses(), notice.message_id
    subscriptions.deliver(notice, user, [part], document, message_id=message_id, policy=policy)
