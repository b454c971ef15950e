"""Finds events among what the inbox counts, and reports each of them once to those who subscribed to it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import CharField, F, Q, QuerySet, Value
from django.db.models.functions import Cast, Concat
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from catalogue.secrets import CredentialsUnreadable
from connectors.network.redaction import printable, shorten
from executions import notices
from executions.approvals import moment
from executions.inbox import TOPICS, Topic
from executions.models import Event, EventNotice, Subscription

MANAGE = "executions.manage_subscription"
MAX_EVENTS = 1_000  # Of each topic, the latest ones
SHOWN_EVENTS, MAX_NAME = 10, 100
DAY, KEPT = timedelta(days=1), timedelta(days=30)
MAX_SLACK_TEXT = 3_000
GONE = 410  # By Standard Webhooks, the receiver wants no more messages.
_turn = Lock()


def may_subscribe(user: Any) -> bool:
    return any(topic.is_visible_to(user) for topic in TOPICS.values())


def find_events() -> None:
    """Writes the notices of what has come about."""
    Subscription.objects.filter(enabled=False).exclude(told_until=None).update(told_until=None)
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
        if wanted:
            EventNotice.objects.create(subscription=subscription).events.set(wanted)
    subscription.told_until = max(latest, told_until or 0)
    if subscription.told_until != told_until or subscription.frequency == Subscription.Frequency.DAILY:
        subscription.save(update_fields=["told_until", "digest_at"])


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
    if events := visible_events(subscription, notice.events.all()):
        try:
            send(subscription, events, message_id=notice.message_id, at=notice.created_at)
        except notices.NotSent as why:
            if why.status != GONE:
                raise
            Subscription.objects.filter(pk=subscription.pk).update(enabled=False)


def visible_events(subscription: Subscription, events: QuerySet[Event]) -> list[Event]:
    """What the owner may see now."""
    owner: Any = subscription.owner
    is_channel = subscription.medium != Subscription.Medium.EMAIL
    if not (owner.is_active and owner.is_staff) or (is_channel and not owner.has_perm(MANAGE)):
        return []
    allowed = [key for key, topic in TOPICS.items() if topic.is_visible_to(owner)]
    return list(events.filter(topic__in=allowed))


def send_example(subscription: Subscription) -> None:
    """Raises NotSent."""
    now, topics = timezone.now(), (topic for topic in TOPICS.values() if topic.kind in subscription.kinds)
    events = [Event(topic=topic.key, name=_("example"), at=now) for topic in topics]
    send(subscription, events, message_id=f"example-{subscription.pk}-{int(now.timestamp())}", at=now)


@dataclass(frozen=True, slots=True)
class Part:
    """The events of one topic, as messages for people show them."""

    heading: str
    lines: list[str]
    url: str


def _parts(events: Sequence[Event]) -> list[Part]:
    """Texts of engines are hostile: they stay on one line, without control characters."""
    parts = []
    for key, topic in TOPICS.items():
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
    if subscription.medium == Subscription.Medium.EMAIL:
        _mail(subscription, events, message_id)
        return
    try:
        target = subscription.target
    except CredentialsUnreadable as error:
        raise notices.NotSent(str(error)) from None
    if not target.get("address"):
        raise notices.NotSent(_("The subscription has no address."))
    formats = {Subscription.Medium.SLACK: for_slack, Subscription.Medium.TEAMS: for_teams}
    make = formats.get(Subscription.Medium(subscription.medium))
    content = make(subscription, events) if make else for_programs(subscription, events, at)
    secret = "" if make else target.get("secret", "")
    correct = _("the address of the subscription")
    notices.post(target["address"], content, message_id=message_id, secret=secret, correct=correct)


def _mail(subscription: Subscription, events: Sequence[Event], message_id: str) -> None:
    parts = _parts(events)
    if not (settings.EMAIL_HOST and subscription.owner.email):
        raise notices.NotSent(_("There is no mail server, or the owner has no e-mail address."))
    blocks = ["\n".join([part.heading, *(f"- {line}" for line in part.lines), part.url]) for part in parts]
    page = reverse("admin:executions_subscription_change", args=[subscription.pk])
    blocks.append(_("You subscribed to this: %(page)s") % {"page": settings.PUBLIC_URL + page})
    subject = parts[0].heading if len(parts) == 1 else _("%(first)s, and more") % {"first": parts[0].heading}
    notices.mail([subscription.owner.email], subject=subject, text="\n\n".join(blocks), message_id=message_id)


def for_programs(subscription: Subscription, events: Sequence[Event], at: datetime) -> dict[str, Any]:
    return {
        "type": "events.reported",
        "timestamp": at.isoformat(),
        "data": {
            "subscription": subscription.name,
            "number": len(events),
            "events": [
                {
                    "kind": TOPICS[event.topic].kind,
                    "topic": event.topic,
                    "name": event.name,
                    "at": event.at and event.at.isoformat(),
                    "ended_at": event.ended_at and event.ended_at.isoformat(),
                    "url": settings.PUBLIC_URL + TOPICS[event.topic].url,
                }
                for event in events[:MAX_EVENTS]
            ],
        },
    }


def _slack_text(text: str) -> str:
    """Slack reads mentions and links between these characters, in plain text too."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def for_slack(subscription: Subscription, events: Sequence[Event]) -> dict[str, Any]:
    """Texts of engines stand in `plain_text`, where no formatting applies."""
    blocks: list[dict[str, Any]] = []
    parts = _parts(events)
    for part in parts:
        text = shorten(_slack_text("\n".join([part.heading, *part.lines])), MAX_SLACK_TEXT)
        link = f"<{part.url}|{_('Show them')}>"
        blocks += [
            {"type": "section", "text": {"type": "plain_text", "text": text, "emoji": False}},
            {"type": "context", "elements": [{"type": "mrkdwn", "text": link}]},
        ]
    summary = _slack_text("; ".join(part.heading for part in parts))
    return {"text": summary, "mrkdwn": False, "unfurl_links": False, "blocks": blocks}


def for_teams(subscription: Subscription, events: Sequence[Event]) -> dict[str, Any]:
    """Texts of engines stand in `TextRun`, which knows no Markdown, unlike `TextBlock`."""
    body: list[dict[str, Any]] = []
    for part in _parts(events):
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
    for subscription in Subscription.objects.exclude(encrypted_target=""):
        with suppress(CredentialsUnreadable):
            subscription.target = subscription.target
            subscription.save(update_fields=["encrypted_target"])
