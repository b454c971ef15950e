"""What `parse_json` reads, and what it refuses without harm."""

import re

import pytest

from connectors.formats.json import (
    MAX_VALUES,
    ObjectOf,
    TooDeep,
    UnreadableJSON,
    parse_json,
    parse_listing,
    parse_values,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": [1, 2.5, true, null, "x"]}', {"a": [1, 2.5, True, None, "x"]}),
        (b' "only a text" ', "only a text"),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b"\xef\xbb\xbf[]", []),
        ('"Grüße \\ud83d\\ude00"'.encode(), "Grüße 😀"),
        (b'"cut \\ud83d"', "cut ?"),
        (b'"\\\\ud83d"', "\\ud83d"),
        (b"123456789012345678901234567890", 123456789012345678901234567890),
    ],
)
def test_ordinary_json_is_read(text, value):
    """A6.1: a listing's JSON arrives as it was meant."""
    assert parse_json(text) == value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b'{"a": ', "not valid JSON.*line 1, column 7"),
        (b"<html>", "not valid JSON"),
        (b"[NaN]", "NaN is not a JSON number"),
        (b"[-Infinity]", "Infinity is not a JSON number"),
        (b"[1e999]", "too large"),
        (b"9" * 5000, "too many digits"),
        (b'"\xff"', "not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b"[1] trailing", "not valid JSON"),
        (b'"a\nb"', "not valid JSON"),
        (b'"' + b"a" * 1000, "not valid JSON"),
    ],
)
def test_what_is_no_strict_json_is_refused_with_a_sentence(text, complaint):
    """A1.4, A2.5: whoever sent it learns what is wrong."""
    with pytest.raises(UnreadableJSON, match=complaint) as caught:
        parse_json(text)
    assert str(caught.value).endswith(".")


FILLER = b'"", ' * 60_000


@pytest.mark.parametrize(
    "text",
    [
        b"[%s1, 2.5, -0, 1E5, true, null]",
        b'[%s{"a": 1, "b": {"a": ["a"]}}]',
        b'[%s{"a": 1, "a": 2}]',
        b'[%s{"a\\\\": 1, "a\\\\": 2, "\\"": "\\\\\\""}]',
        '[%s"Grüße \\ud83d\\ude00", "\\u00e9"]'.encode(),
        b'[%s"cut \\ud83d"]',
        b"[%s1e999]",
        b"[%sNaN]",
        b"[%s01]",
        b"[%s1] trailing",
        b'[%s"\xff"]',
        b"[%s123456789012345678901234567890, 0.1, 1.7976931348623157e308, 5e-324]",
        b"[%s" + b"9" * 5000 + b"]",
        b"[%s" + b"[" * 99 + b"]" * 100,
        b"[%s" + b'{"":[' * 50 + b"]}" * 50 + b"]",
    ],
)
def test_long_texts_are_read_like_short_ones(text):
    """P9: another reader takes long texts; its answers and refusals are the same."""

    def read(filler: bytes, object_of: ObjectOf | None) -> str:
        try:
            said = repr(parse_json(text.replace(b"%s", filler), object_of=object_of))
        except UnreadableJSON as refusal:
            said = re.sub(r"(column|position) \d+", "", str(refusal))
        return said.replace("'', ", "")

    def twice_or_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        once = dict(pairs)
        return once if len(once) == len(pairs) else {"twice": pairs}

    for object_of in (None, twice_or_once):
        assert read(FILLER, object_of) == read(b"", object_of)


def test_nesting_is_accepted_up_to_the_limit():
    """B8: the limit counts levels, not brackets."""
    assert parse_json(b"[" * 100 + b"]" * 100)
    assert parse_json(b"[" + b",".join([b"[]"] * 1000) + b"]")
    with pytest.raises(UnreadableJSON, match="100 levels"):
        parse_json(b"[" * 101 + b"]" * 101)
    with pytest.raises(UnreadableJSON, match="3 levels"):
        parse_json(b'{"a":[{"b":[]}]}', max_depth=3)


@pytest.mark.parametrize("unit", [b"[", b'{"a":', b'[{"a":', b'["]",', b'["\\"]",'])
@pytest.mark.parametrize("levels", [10_000, 1_000_000])
def test_deep_nesting_is_refused_without_a_recursion_error(unit, levels):
    """B8: a million brackets cost time in proportion and no stack."""
    with pytest.raises(UnreadableJSON, match="levels"):
        parse_json(unit * levels)


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize("envelope", ["[%s]", '{"data": {"workflows": [%s]}, "next": null}'])
def test_of_a_listing_only_the_objects_that_are_nested_too_deep_are_lost(envelope):
    """B6: the others come as they are, and those keep what names them."""
    bad = [f'{{"id": "b{n}", "schema": {deep(n)}, "name": "\\"[[["}}' for n in (200, 10_000)]
    good = '{"id": "g", "schema": [[{"a": "]"}]]}'
    text = envelope % ", ".join([bad[0], good, bad[1]])
    read = parse_listing(text.encode(), max_depth=100)
    first, other, last = read if isinstance(read, list) else read["data"]["workflows"]
    assert other == {"id": "g", "schema": [[{"a": "]"}]]} and not isinstance(other, TooDeep)
    for lost, name in ((first, "b200"), (last, "b10000")):
        assert isinstance(lost, TooDeep)
        assert (lost["id"], lost["name"]) == (name, '"[[[')


@pytest.mark.parametrize(
    "text", [b"[" * 1_000, b'[{"a": ' + b"[" * 200 + b"}]", b"[" * 2_000_000 + b"]" * 2_000_000]
)
def test_a_listing_that_is_broken_or_very_large_is_refused_as_a_whole(text):
    """B8: nobody knows which object it would be, or it would take too long to find out."""
    with pytest.raises(UnreadableJSON, match="levels"):
        parse_listing(text, max_depth=100)


def test_brackets_in_texts_are_not_nesting():
    """B8: only structure counts."""
    text = b'["' + b"[{" * 5_000 + b'", "\\"' + b"[" * 5_000 + b'"]'
    assert len(parse_json(text)) == 2


@pytest.mark.parametrize("text", [b'"' + b"\\" * 999_999, b'["' * 500_000, b'\\"' * 500_000, b'"' * 999_999])
@pytest.mark.timeout(20)
def test_hostile_texts_take_no_longer_than_honest_ones(text):
    """B8: no input makes the depth scan quadratic."""
    with pytest.raises(UnreadableJSON):
        parse_json(text + b"[" * 200)


HOSTILE = ["for(;;);" * 100_000, "throw " * 100_000, "<" * 999_999, "\x1e" * 999_999, '"' * 999_999]
HOSTILE += [
    "{}" * 200_000,
    "1\n" * 200_000,
    '"\\ud83d' * 100_000,
    "{}&& " * 200_000,
    "[{" * 500_000,
    "\ud83d",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.timeout(20)
def test_hostile_values_are_read_without_an_error_and_within_bounds(text):
    """B8."""
    values, rest, _ = parse_values(text)
    assert len(values) <= MAX_VALUES
    assert rest or set(map(str, values)) <= {"{}", "1"}


def test_the_text_itself_is_not_in_the_error():
    """E6: a log of the error does not quote what was parsed."""
    with pytest.raises(UnreadableJSON) as caught:
        parse_json(b'{"password": "hunter2hunter2"')
    assert caught.value.__cause__ is None
    assert "hunter2" not in f"{caught.value!r}{caught.value}"
