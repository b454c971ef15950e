"""A result's content blocks on the page of an execution."""

import re
from typing import Any

import pytest
from django.test import Client

from executions.models import State
from tests.admin.pages import page_url, text_of
from tests.content_blocks import EVERY_KIND, PNG, SOUND, embedded, in_base64, link, picture, sound, text
from tests.factories import make_execution

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert(1)</script>"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"


def page_with(client: Client, content: list[Any], **fields: Any) -> tuple[str, str]:
    """The page's HTML and its text."""
    execution = make_execution(payload={"output": None, "content": content}, **fields)
    page = client.get(page_url(execution))
    return page.content.decode(), text_of(page)


def media_in(html: str) -> list[str]:
    return re.findall(r'<(?:img|audio)[^>]* src="(data:[^"]*)"', html)


def test_pictures_are_shown_sounds_can_be_played_and_the_rest_is_told(admin_client):
    """B3, A8.2: without a request to anybody."""
    html, shown = page_with(admin_client, EVERY_KIND)
    assert media_in(html) == [
        f"data:image/png;base64,{in_base64(PNG)}",
        f"data:audio/wav;base64,{in_base64(SOUND)}",
    ]
    for told in (
        "Three of them.",
        f"image, image/png, {len(PNG)} bytes",
        "resource_link, application/pdf, The report, demo://resource/1",
        "# Heading",
        "resource, application/gzip, demo://resource/2, 3 bytes",
    ):
        assert told in shown


def test_what_a_failed_run_said_in_blocks_is_shown(admin_client):
    """A7.4."""
    _, shown = page_with(admin_client, [text("Line 3 is ragged.")], state=State.FAILED)
    assert "Line 3 is ragged." in shown


def test_nothing_that_an_engine_sends_runs_or_is_fetched(admin_client):
    """D8: texts are escaped, links are texts, and only pictures that hold no scripts are shown."""
    content = [
        text(HOSTILE),
        embedded(uri=f"javascript:{HOSTILE}", mimeType="text/html", text=HOSTILE),
        link(uri="https://evil.example/x", title=HOSTILE),
        picture(SVG, "image/svg+xml"),
        picture(SVG, 'image/png" onerror="alert(1)'),
        picture() | {"data": f'{in_base64(PNG)}" onerror="alert(1)'},
        sound() | {"mimeType": "text/html"},
        {"type": HOSTILE, "data": [HOSTILE]},
        {"type": "image", "mimeType": {"a": HOSTILE}, "data": in_base64(PNG)},
    ]
    html, shown = page_with(admin_client, content)
    assert HOSTILE not in html
    assert media_in(html) == []
    assert 'href="https://evil.example' not in html
    assert HOSTILE in shown
    assert not re.search(r"<(?:img|audio)[^>]*onerror", html)


def test_a_page_shows_no_more_than_it_can_carry(admin_client):
    """B3: a large result slows nothing, its own page included."""
    content = [picture(bytes(2_000_000)) for _ in range(3)] + [text("x" * 90_000), text("y" * 90_000)]
    html, shown = page_with(admin_client, [*content, *[text("z")] * 200])
    assert len(media_in(html)) == 1
    assert shown.count("2,000,000 bytes, too large for this page") == 2
    assert "the first 10,000 of 90,000 characters" in shown
    assert "105 more blocks are not shown here" in shown
    assert len(html) < 4_000_000
