"""What a declared webhook takes for genuine, by the forms that GitHub, Standard Webhooks, Stripe and Slack
publish, and what it reads."""

import base64
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from connectors.errors import InvalidAnswer, NotGenuine, Unsupported
from connectors.http_job.connector import HttpJobConnector
from connectors.http_job.engine import HttpJobConfig
from connectors.protocol import Delivery, ReportedEnd
from tests.connectors.test_job_engine_declarations import SMALLEST

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
SECRET = "a-secret-of-the-webhook-0123456789"
BODY = b'{"run": "r-1"}'
SLACK = (
    "{header: X-Slack-Signature, prefix: v0=, signs: 'v0:{timestamp}:{body}', "
    "timestamp: X-Slack-Request-Timestamp}"
)


def connector(check: str = "signature: github", more: str = "", *, secret: str = SECRET) -> HttpJobConnector:
    """Of an engine whose reports name their run as `run`."""
    declaration = f"{SMALLEST}webhook:\n  {check}\n  run_id: run\n{more}"
    address = "https://tea.example.com"
    return HttpJobConnector(
        HttpJobConfig.model_validate(
            {"base_url": address, "declaration": declaration, "webhook_secret": secret}
        )
    )


def read(webhook: HttpJobConnector, body: bytes = BODY, *, at: datetime = NOW, **headers: str) -> Any:
    given = {"content-type": "application/json"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    return webhook.read_delivery(Delivery(headers=given, body=body, received_at=at))


def digest(content: bytes, key: bytes = SECRET.encode()) -> bytes:
    return hmac.digest(key, content, "sha256")


def at(seconds: float) -> str:
    return str(int((NOW + timedelta(seconds=seconds)).timestamp()))


def test_githubs_own_example_is_genuine():
    """B8: of "Validating webhook deliveries", whose body is no JSON."""
    github = connector(secret="It's a Secret to Everybody")
    published = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    with pytest.raises(InvalidAnswer, match="cannot be read"):
        read(github, b"Hello, World!", x_hub_signature_256=f"sha256={published}")
    for wrong in (f"sha256={published[:-1]}8", published, f"sha1={published}", "sha256="):
        with pytest.raises(NotGenuine):
            read(github, b"Hello, World!", x_hub_signature_256=wrong)
    with pytest.raises(NotGenuine, match="no header X-Hub-Signature-256"):
        read(github, b"Hello, World!")


def test_the_example_of_standard_webhooks_is_genuine_for_five_minutes():
    """B8: also where the key is being replaced, and the header has a second signature."""
    standard = connector("signature: standard", secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = {"webhook_id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook_timestamp": "1614265330"}
    signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    sent_at = datetime.fromtimestamp(1614265330, UTC)
    for signatures in (signature, f"v1a,xyz v1,b2xkLWtleQ== {signature}"):
        for seconds in (-300, 0, 300):
            with pytest.raises(InvalidAnswer, match="no run id at run"):
                read(
                    standard,
                    b'{"test": 2432232314}',
                    at=sent_at + timedelta(seconds=seconds),
                    webhook_signature=signatures,
                    **headers,
                )
    for seconds, reason in ((302, "302 s old; 300 s are allowed"), (-302, "ahead of this server's clock")):
        moment = sent_at + timedelta(seconds=seconds)
        with pytest.raises(NotGenuine, match=reason):
            read(standard, b'{"test": 2432232314}', at=moment, webhook_signature=signature, **headers)
    headers["webhook_timestamp"] = "1614265331"
    with pytest.raises(NotGenuine, match="does not match the body"):
        read(standard, b'{"test": 2432232314}', at=sent_at, webhook_signature=signature, **headers)


def test_a_key_of_standard_webhooks_may_be_a_plain_text():
    """B8: as this product itself signs its notices of approvals."""
    signed = base64.b64encode(digest(b"m-1." + at(0).encode() + b"." + BODY)).decode()
    headers = {"webhook_id": "m-1", "webhook_timestamp": at(0), "webhook_signature": f"v1,{signed}"}
    assert read(connector("signature: standard"), **headers) == ReportedEnd(run_id="r-1")


def test_stripes_header_has_time_and_signatures():
    """B8: those of other schemes are ignored, and a repetition after five minutes is refused."""
    stripe = connector("signature: stripe")
    signed = digest(at(0).encode() + b"." + BODY).hex()
    header = f"t={at(0)},v1={'0' * 64},v1={signed},v0={'1' * 64}"
    assert read(stripe, stripe_signature=header) == ReportedEnd(run_id="r-1")
    for wrong in (f"t={at(0)},v0={signed}", f"t={at(1)},v1={signed}", f"v1={signed}", "t=,v1=", ",,,", "t=x"):
        with pytest.raises(NotGenuine):
            read(stripe, stripe_signature=wrong)
    with pytest.raises(NotGenuine, match="s old"):
        read(stripe, at=NOW + timedelta(hours=1), stripe_signature=header)


def test_what_is_signed_can_be_written_out():
    """B10: as Slack does it."""
    slack = connector(f"signature: {SLACK}")
    signed = digest(f"v0:{at(-200)}:".encode() + BODY).hex()
    headers = {"x_slack_request_timestamp": at(-200), "x_slack_signature": f"v0={signed.upper()}"}
    assert read(slack, **headers) == ReportedEnd(run_id="r-1")
    for timestamp in ("now", "1e9", f"{at(-200)}.0", "-5", "9" * 40):
        forged = digest(f"v0:{timestamp}:".encode() + BODY).hex()
        with pytest.raises(NotGenuine, match="not in seconds since 1970"):
            read(slack, x_slack_request_timestamp=timestamp, x_slack_signature=f"v0={forged}")


def test_an_engine_that_cannot_sign_sends_the_secret():
    """B10: with a prefix, as a bearer token has."""
    bearer = connector("secret: {header: Authorization, prefix: 'Bearer '}")
    assert read(bearer, authorization=f"Bearer {SECRET}") == ReportedEnd(run_id="r-1")
    for wrong in (SECRET, "Bearer ", f"Bearer {SECRET}x", f"bearer {SECRET}", "Bearer \u00e9"):
        with pytest.raises(NotGenuine):
            read(bearer, authorization=wrong)


def test_the_bytes_as_they_came_are_what_is_signed():
    """B8: braces in the body are no placeholders, and bytes need be no text."""
    for body in (
        b'{"run": "{timestamp}{{id}}"}',
        b'{"run":\n  "r-1" }',
        '{"run": "\u00e9"}'.encode(),
        b"\xff\x00",
    ):
        signature = f"sha256={digest(body).hex()}"
        try:
            read(connector(), body, x_hub_signature_256=signature)
        except InvalidAnswer:
            assert body == b"\xff\x00"
        with pytest.raises(NotGenuine):
            read(connector(), body + b" ", x_hub_signature_256=signature)


@pytest.mark.parametrize(
    ("report", "end"),
    [
        ({"run": "r-1", "done": True, "job": 7}, ReportedEnd(run_id="r-1", workflow_id="7")),
        ({"run": 12, "done": "yes", "job": "b"}, ReportedEnd(run_id="12", workflow_id="b")),
        ({"run": "r-1", "done": False, "job": 7}, None),
        ({"run": "r-1", "job": 7}, None),
        ({}, None),
        ([], None),
        ("run", None),
    ],
)
def test_only_reports_of_ends_count(report, end):
    """B10: by the expressions that the rest of the declaration uses."""
    body = json.dumps(report).encode()
    reading = connector(more="  ended: done\n  workflow_id: job\n")
    assert read(reading, body, x_hub_signature_256=f"sha256={digest(body).hex()}") == end


@pytest.mark.parametrize(
    "report",
    [
        {"run": None},
        {"run": ["r-1"]},
        {"run": True},
        {"run": "a\nb"},
        {"run": "x" * 256},
        {"other": 1},
        [],
        5,
    ],
)
def test_a_report_without_a_run_is_the_declarations_mistake(report):
    """B10: it is said what came instead."""
    body = json.dumps(report).encode()
    with pytest.raises(InvalidAnswer, match="The body has no run id at run; it is"):
        read(connector(), body, x_hub_signature_256=f"sha256={digest(body).hex()}")


def test_a_secret_is_long_enough_and_has_a_webhook_to_be_for():
    """B4, B8: and no message quotes it."""
    for secret, declaration in (
        ("too-short-a-key", f"{SMALLEST}webhook: {{signature: github, run_id: id}}"),
        (SECRET, SMALLEST),
    ):
        with pytest.raises(ValidationError) as caught:
            HttpJobConfig.model_validate(
                {"base_url": "https://tea.example.com", "declaration": declaration, "webhook_secret": secret}
            )
        (problem,) = caught.value.errors()
        assert problem["ctx"]["error"].field == "webhook_secret"
        assert secret not in str(caught.value)


def test_without_a_secret_nothing_is_genuine():
    """B8: neither what is signed with nothing."""
    silent = connector(secret="")
    assert not silent.capabilities.reports_ends and connector().capabilities.reports_ends
    with pytest.raises(Unsupported):
        read(silent, x_hub_signature_256=f"sha256={digest(BODY, b'').hex()}")


def test_awx_reports_the_end_of_a_job_with_the_secret_in_a_header():
    """B10: the body of its notifications, which also tell of starts."""
    awx = HttpJobConnector(
        HttpJobConfig.model_validate(
            {"preset": "awx", "base_url": "https://awx.example.com", "webhook_secret": SECRET}
        )
    )
    job = {
        "id": 42,
        "name": "Brew tea",
        "url": "https://awx.example.com/#/jobs/playbook/42",
        "created_by": "admin",
        "started": "2026-11-24T11:59:48.762079+00:00",
        "finished": None,
        "status": "running",
        "traceback": "",
        "hosts": {},
    }
    assert read(awx, json.dumps(job).encode(), x_webhook_secret=SECRET) is None
    job |= {"finished": "2026-11-24T12:00:00.000000+00:00", "status": "successful"}
    assert read(awx, json.dumps(job).encode(), x_webhook_secret=SECRET) == ReportedEnd(run_id="42")
    with pytest.raises(NotGenuine, match="The secret in X-Webhook-Secret does not match"):
        read(awx, json.dumps(job).encode(), x_webhook_secret="another")
