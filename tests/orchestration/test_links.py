"""Addresses in the text for the person: what stays, and what is taken out."""

import pytest

from orchestration.pipeline import REMOVED, remove_foreign_addresses

GIVEN = (
    {"body": {"url": "https://shop.example/orders/7?tab=1&x=2", "list": ["See http://a.example/b."]}},
    "Look at www.shop.example",
)


@pytest.mark.parametrize(
    "text",
    [
        "Nothing to see.",
        "At https://shop.example/orders/7?tab=1&x=2.",
        "[Order](https://shop.example/orders/7?tab=1&x=2)",
        "[Order](https://shop.example/orders/7?tab=1&amp;x=2)",
        "http://a.example/b, www.shop.example!",
        "1 < 2, a<=b, 3:4, note: fine; // a comment; C:\\temp; and/or",
        "<table><tr><td>1</td></tr></table><br/><b>Total</b>",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        '{"state": "sent", "at": "2026-11-22T10:00:00Z"}',
    ],
)
def test_what_was_given_and_what_is_no_address_stays(text):
    assert remove_foreign_addresses(text, given=GIVEN) == (text, 0)


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example/?d=7",
        "https://shop.example/orders/7?tab=1&x=2&d=secret",
        "https://shop.example/orders/",
        "HTTPS://EVIL.example",
        "http:\\\\evil.example/d",
        "https:evil.example/d",
        "ftp://evil.example",
        "custom+app://open?d=7",
        "www.evil.example/d",
        "mailto:thief@evil.example?body=7",
        "tel:+4900000",
        "javascript:alert(1",
        "data:text/html,x",
    ],
)
def test_an_address_that_nobody_gave_is_taken_out(address):
    for text in ("At {}.", "({})", '"{}"', "[x]({})", "[1]: {}", "<{}>"):
        told, removed = remove_foreign_addresses(text.format(address), given=GIVEN)

        assert (removed, address in told, REMOVED in told) == (1, False, True), text


@pytest.mark.parametrize(
    "destination", ["/admin/delete", "//evil.example/d", "javascript&colon;alert", "x.html"]
)
def test_whatever_a_link_leads_to_has_to_be_given(destination):
    for text in (f"[x]({destination})", f"[x](<{destination}>)", f"[x]: {destination} 'title'"):
        told, removed = remove_foreign_addresses(text, given=GIVEN)

        assert (removed, destination in told) == (1, False)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("![x](http://a.example/b)", "[x](http://a.example/b)"),
        ("![x][1]", "[x][1]"),
        ('<img src="http://a.example/b">', '< img src="http://a.example/b">'),
        ("<p onclick=alert(1)>", "< p onclick=alert(1)>"),
        ("<script>alert(1)</script>", "< script>alert(1)< /script>"),
        ("<!-- x --><?php", "< !-- x -->< ?php"),
        ("<b style='x'>a</b>", "< b style='x'>a</b>"),
    ],
)
def test_what_would_be_fetched_or_run_for_being_shown_becomes_text(text, told):
    assert remove_foreign_addresses(text, given=GIVEN) == (told, 0)


def test_a_long_text_takes_no_long_time():
    """What can be nested or repeated is gone through once."""
    for part in ("[x](", "![", "<a ", "http:", "[" * 50, "]: "):
        remove_foreign_addresses(part * 10_000, given=[part * 1_000])
