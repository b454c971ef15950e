"""Finds events among what the inbox counts, and reports each of them once to those who subscribed to it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import CharField, F, Q, QuerySet, Value
from django.db.models.functions import Cast, Concat
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from catalogue.secrets import CredentialsUnreadable
from connectors.network.policy import ENGINE_ADDRESSES, AddressPolicy
from connectors.network.redaction import printable, shorten
from executions import notices
from executions.approvals import moment
from executions.inbox import ENDED, TOPICS, Topic
from executions.models import Event, EventKind, EventNotice, Execution, RunNotice, Subscription
from executions.models.subscription import Addressed
from executions.models.usage import FAILURES
from executions.questions import page_of_run
from executions.reading import summarise_execution

REPORTED = {**TOPICS, ENDED.key: ENDED}
MANAGE = "executions.manage_subscription"
MAX_EVENTS = 1_000  # Of each topic, the latest ones
SHOWN_EVENTS, MAX_NAME, MAX_ERROR = 10, 100, 500
DAY, KEPT = timedelta(days=1), timedelta(days=30)
SETTLED = timedelta(seconds=60)  # So long after an end, no process's clock or commit is behind it
MAX_SLACK_TEXT = 3_000
_turn = Lock()


def may_subscribe(user: Any) -> bool:
    return any(topic.is_visible_to(user) for topic in REPORTED.values())


def find_events() -> None:
    """Writes the notices of what has come about."""
    off = Subscription.objects.filter(enabled=False).exclude(told_until=None)
    off.update(told_until=None, runs_until=None)
    if not Subscription.objects.filter(enabled=True).exists():
        Event.objects.all().delete()
        return
    # Before the transaction, which occupies SQLite's only writer. The next pass corrects what is outdated by
    # then, without another notice: see `Topic.quiet`.
    found = {(row.topic, row.subject): row for topic in TOPICS.values() for row in _rows_of(topic)}
    with transaction.atomic():
        # Other workers wait: so the keys of events grow in the order in which they become visible, and no
        # subscription misses one.
        subscriptions = list(Subscription.objects.select_for_update().filter(enabled=True).order_by("pk"))
        now = timezone.now()
        events = _keep_events(found, now)
        for subscription in subscriptions:
            _note_events(subscription, events, now)
        EventNotice.objects.filter(created_at__lt=now - KEPT).delete()


def _note_events(subscription: Subscription, events: Sequence[Event], now: datetime) -> None:
    latest, told_until = max((event.pk for event in events), default=0), subscription.told_until
    runs_after, runs_until = subscription.runs_until, None
    if EventKind.ENDED in subscription.kinds:
        runs_until = min(max(now - SETTLED, runs_after or now), now)
    if told_until is None:
        # What was so before is in the inbox, and is no event.
        subscription.digest_at = now + DAY
    elif subscription.frequency == Subscription.Frequency.DAILY and now < subscription.digest_at:
        return
    else:
        subscription.digest_at = now + DAY
        wanted = [
            event for event in events if event.pk > told_until and _kind_of(event) in subscription.kinds
        ]
        notice = EventNotice(subscription=subscription)
        if ended_runs(subscription, runs_after, runs_until).exists():
            notice.runs_after, notice.runs_until = runs_after, runs_until
        if wanted or notice.runs_until:
            notice.save()
            notice.events.set(wanted)
    subscription.told_until, subscription.runs_until = max(latest, told_until or 0), runs_until
    is_daily = subscription.frequency == Subscription.Frequency.DAILY
    if (subscription.told_until, runs_until) != (told_until, runs_after) or is_daily:
        subscription.save(update_fields=["told_until", "runs_until", "digest_at"])


def runs_of(subscription: Subscription) -> QuerySet[Execution]:
    """Those that the subscription chooses."""
    runs = Execution.objects.all()
    if subscription.chooses_workflows:
        runs = runs.filter(workflow__in=list(subscription.workflows.values_list("pk", flat=True)))
    return runs.filter(caller__in=subscription.callers) if subscription.callers else runs


def ended_runs(
    subscription: Subscription, after: datetime | None, until: datetime | None
) -> QuerySet[Execution]:
    """Without test runs."""
    if after is None or until is None:
        return Execution.objects.none()
    runs = runs_of(subscription).filter(finished_at__gt=after, finished_at__lte=until)
    runs = runs.exclude(door=Execution.Door.TEST)
    return runs.filter(state__in=FAILURES) if subscription.only_failed else runs


def _kind_of(event: Event) -> str:
    return TOPICS[event.topic].kind if event.topic in TOPICS else ""


def _keep_events(found: dict[tuple[str, str], Event], now: datetime) -> list[Event]:
    """Returns those that last and those that ended. What soon comes about again is the same event."""
    known = {(event.topic, event.subject): event for event in Event.objects.all()}
    over: list[int] = []
    again: list[int] = []
    renewed: list[int] = []
    for key, event in known.items():
        if key not in found:
            over += [event.pk] if event.ended_at is None else []
        elif event.ended_at is not None:
            is_same = now - event.ended_at < TOPICS[event.topic].quiet
            (again if is_same else renewed).append(event.pk)
    Event.objects.filter(pk__in=over).update(ended_at=now)
    Event.objects.filter(pk__in=again).update(ended_at=None)
    Event.objects.filter(Q(pk__in=renewed) | Q(ended_at__lt=now - KEPT)).delete()
    kept = set(Event.objects.values_list("topic", "subject"))
    Event.objects.bulk_create(row for key, row in found.items() if key not in kept)
    return list(Event.objects.all())


def _rows_of(topic: Topic) -> Iterator[Event]:
    rows = topic.rows().order_by(F(topic.since).desc(nulls_last=True), "pk")
    version = F(topic.version) if topic.version else Value("")
    keyed = rows.annotate(
        _subject=Concat(Cast("pk", CharField()), Value(" "), version, output_field=CharField())
    )
    for subject, name, at in keyed.values_list("_subject", topic.name, topic.since)[:MAX_EVENTS]:
        yield Event(topic=topic.key, subject=subject, name=name, at=at)


def report_events(*, seconds: float) -> int:
    """Returns how many notices were sent."""
    return notices.send_all(_destinations, seconds=seconds, turn=_turn)


def _destinations() -> Iterable[notices.Destination]:
    find_events()
    unsent = EventNotice.objects.filter(sent_at=None, given_up_at=None, subscription__enabled=True)
    email = Subscription.Medium.EMAIL
    yield notices.Destination("e-mail", EventNotice.objects.filter(subscription__medium=email), send_notice)
    others = unsent.exclude(subscription__medium=email).order_by("subscription_id")
    for key in others.values_list("subscription_id", flat=True).distinct():
        theirs = EventNotice.objects.filter(subscription=key)
        yield notices.Destination(f"subscription {key}", theirs, send_notice)


def send_notice(notice: EventNotice) -> None:
    subscription = notice.subscription
    if not subscription.enabled:
        return
    if events := visible_events(notice):
        try:
            send(subscription, events, message_id=notice.message_id, at=notice.created_at)
        except notices.NotSent as why:
            if why.status != notices.GONE:
                raise
            Subscription.objects.filter(pk=subscription.pk).update(enabled=False)


def visible_events(notice: EventNotice) -> list[Event]:
    """What the owner may see now, of what the subscription chooses."""
    subscription = notice.subscription
    owner: Any = subscription.owner
    is_channel = subscription.medium != Subscription.Medium.EMAIL
    if not (owner.is_active and owner.is_staff) or (is_channel and not owner.has_perm(MANAGE)):
        return []
    allowed = [key for key, topic in REPORTED.items() if topic.is_visible_to(owner)]
    events = list(notice.events.filter(topic__in=allowed))
    keys = {event.pk: UUID(event.subject.split()[0]) for event in events if TOPICS[event.topic].is_of_runs}
    chosen = set(runs_of(subscription).filter(pk__in=keys.values()).values_list("pk", flat=True))
    events = [event for event in events if event.pk not in keys or keys[event.pk] in chosen]
    if ENDED.key in allowed:
        runs = ended_runs(subscription, notice.runs_after, notice.runs_until).order_by("-finished_at")
        events += [_as_event(run) for run in runs[:MAX_EVENTS]]
    return events


def _as_event(run: Execution) -> Event:
    why = f": {run.error}" if run.error else ""
    event = Event(topic=ENDED.key, name=f"{run.tool_name}: {run.state_label}{why}", at=run.ended_at)
    event.run = run
    return event


def describe_run(run: Execution) -> dict[str, Any]:
    """As MCP shows it, without the output."""
    error, caller = shorten(run.error, MAX_ERROR), run.caller_name or run.caller
    return summarise_execution(run) | {"error": error, "caller": caller, "url": page_of_run(run)}


def send_example(subscription: Subscription) -> None:
    """Raises NotSent."""
    now, topics = timezone.now(), (topic for topic in REPORTED.values() if topic.kind in subscription.kinds)
    events = [Event(topic=topic.key, name=_("example"), at=now) for topic in topics]
    send(subscription, events, message_id=f"example-{subscription.pk}-{int(now.timestamp())}", at=now)


@dataclass(frozen=True, slots=True)
class Part:
    """The events of one topic, as messages for people show them."""

    heading: str
    lines: list[str]
    url: str


def parts_of(events: Sequence[Event]) -> list[Part]:
    """Texts of engines are hostile: they stay on one line, without control characters."""
    parts = []
    for key, topic in REPORTED.items():
        ours = [event for event in events if event.topic == key]
        lines = [" ".join(shorten(printable(event.name), MAX_NAME).split()) + _when(event) for event in ours]
        if more := len(lines) - SHOWN_EVENTS:
            lines = lines[:SHOWN_EVENTS] + (
                [_("and %(number)s more") % {"number": f"{more:,}"}] if more > 0 else []
            )
        if ours:
            parts.append(Part(f"{topic.words}: {len(ours):,}", lines, settings.PUBLIC_URL + topic.url))
    return parts


def _when(event: Event) -> str:
    since = f" ({moment(event.at)})" if event.at else ""
    return since + (_(", over") if event.ended_at else "")


def send(subscription: Subscription, events: Sequence[Event], *, message_id: str, at: datetime) -> None:
    """Raises NotSent."""
    page = reverse("admin:executions_subscription_change", args=[subscription.pk])
    footer = _("You subscribed to this: %(page)s") % {"page": settings.PUBLIC_URL + page}
    document = for_programs(subscription, events, at)
    parts, owner = parts_of(events), subscription.owner
    deliver(subscription, owner, parts, document, message_id=message_id, footer=footer)


def deliver(
    row: Addressed,
    user: Any,
    parts: Sequence[Part],
    document: dict[str, Any],
    *,
    message_id: str,
    footer: str = "",
    policy: AddressPolicy = ENGINE_ADDRESSES,
) -> None:
    """`user`: who gets a letter; `parts` are for people, the document for programs. Raises NotSent."""
    if row.medium == row.Medium.EMAIL:
        if not (settings.EMAIL_HOST and user is not None and user.email):
            raise notices.NotSent(_("There is no mail server, or the owner has no e-mail address."))
        blocks = [
            "\n".join([part.heading, *(f"- {line}" for line in part.lines), part.url]) for part in parts
        ]
        first = parts[0].heading
        subject = first if len(parts) == 1 else _("%(first)s, and more") % {"first": first}
        text = "\n\n".join([*blocks, footer]).rstrip()
        notices.mail([user.email], subject=subject, text=text, message_id=message_id)
        return
    try:
        target = row.target
    except CredentialsUnreadable as error:
        raise notices.NotSent(str(error)) from None
    if not target.get("address"):
        raise notices.NotSent(_("The subscription has no address."))
    make = {row.Medium.SLACK: for_slack, row.Medium.TEAMS: for_teams}.get(row.Medium(row.medium))
    content, secret = (make(parts), "") if make else (document, target.get("secret", ""))
    options: Any = {"message_id": message_id, "correct": _("the address"), "policy": policy}
    notices.post(target["address"], content, secret=secret, **options)


def for_programs(subscription: Subscription, events: Sequence[Event], at: datetime) -> dict[str, Any]:
    return {
        "type": "events.reported",
        "timestamp": at.isoformat(),
        "data": {
            "subscription": subscription.name,
            "number": len(events),
            "events": [
                {
                    "kind": REPORTED[event.topic].kind,
                    "topic": event.topic,
                    "name": event.name,
                    "at": event.at and event.at.isoformat(),
                    "ended_at": event.ended_at and event.ended_at.isoformat(),
                    "url": settings.PUBLIC_URL + REPORTED[event.topic].url,
                    **(describe_run(event.run) if event.run else {}),
                }
                for event in events[:MAX_EVENTS]
            ],
        },
    }


def _slack_text(text: str) -> str:
    """Slack reads mentions and links between these characters, in plain text too."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def for_slack(parts: Sequence[Part]) -> dict[str, Any]:
    """Texts of engines stand in `plain_text`, where no formatting applies."""
    blocks: list[dict[str, Any]] = []
    for part in parts:
        text = shorten(_slack_text("\n".join([part.heading, *part.lines])), MAX_SLACK_TEXT)
        link = f"<{part.url}|{_('Show them')}>"
        blocks += [
            {"type": "section", "text": {"type": "plain_text", "text": text, "emoji": False}},
            {"type": "context", "elements": [{"type": "mrkdwn", "text": link}]},
        ]
    summary = _slack_text("; ".join(part.heading for part in parts))
    return {"text": summary, "mrkdwn": False, "unfurl_links": False, "blocks": blocks}


def for_teams(parts: Sequence[Part]) -> dict[str, Any]:
    """Texts of engines stand in `TextRun`, which knows no Markdown, unlike `TextBlock`."""
    body: list[dict[str, Any]] = []
    for part in parts:
        opens = {"type": "Action.OpenUrl", "url": part.url}
        heading = {"type": "TextRun", "text": part.heading, "weight": "Bolder", "selectAction": opens}
        body.append({"type": "RichTextBlock", "inlines": [heading]})
        body += [
            {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": line}]} for line in part.lines
        ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    content_type = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": content_type, "content": card}]}


def reencrypt_targets() -> None:
    """With the present SECRET_KEY; leaves what cannot be read."""
    for model in (Subscription, RunNotice):
        for row in model._default_manager.exclude(encrypted_target=""):
            with suppress(CredentialsUnreadable):
                row.target = row.target
                row.save(update_fields=["encrypted_target"])
