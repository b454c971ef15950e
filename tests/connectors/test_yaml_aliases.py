"""Aliases of YAML let a few bytes stand for very much; what they stand for is counted before it is made."""

import itertools

import pytest

from catalogue.configuration import LIMITS
from connectors.formats.yaml import UnusableText, read_document, read_values

REPEATED = "repeat too much"
LETTERS = "abcdefghijklmnop"


def multiplied(first: str, others: str, levels: int) -> str:
    """Each level has the one before nine times."""
    lines = [f"a: &a {first}"]
    lines += [
        f"{one}: &{one} {others.replace('*', f'*{old}')}" for old, one in itertools.pairwise(LETTERS[:levels])
    ]
    return "\n".join(lines)


LIST, LISTS = "[x,x,x,x,x,x,x,x,x]", "[*,*,*,*,*,*,*,*,*]"
MAP = "{1: x, 2: x, 3: x, 4: x, 5: x, 6: x, 7: x, 8: x, 9: x}"
MAPS = MAP.replace("x", "*")
HOSTILE = {
    "lists within the limit of values": multiplied(LIST, LISTS, 5),
    "mappings": multiplied(MAP, MAPS, 5),
    "merges": multiplied("{x: 1}", "{<<: [*, *, *], y: *, z: [*, *, *]}", 7),
    "a long text": "a: &a " + "x" * 100_000 + f"\nb: [{','.join(['*a'] * 900)}]",
    "a long key": "? &k " + "x" * 10_000 + "\n: 1\nb:\n" + "- {? *k : 1}\n" * 5_000,
    "very many": multiplied(LIST, LISTS, 12),
    "chains": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 3_000)),
    "chains of keys": "? &a0 [x]\n: 1\n"
    + "".join(f"? &a{n} [*a{n - 1}]\n: 1\n" for n in range(1, 3_000))
    + "z: *a2999\n",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_text_that_multiplies_itself_is_refused(text):
    """H14."""
    for fast in (False, True):
        with pytest.raises(UnusableText):
            read_document(text.encode(), limits=LIMITS, fast=fast)
    with pytest.raises(UnusableText):
        read_values(text.encode(), limits=LIMITS, object_of=dict)


def test_aliases_that_spare_some_lines_are_followed():
    text = "a: &a {x: 1, y: [1, 2, 3]}\n" + "".join(f"k{n}: *a\n" for n in range(1_000))
    read = read_document(text.encode(), limits=LIMITS).value
    assert len(read) == 1_001 and read["k999"] == {"x": 1, "y": [1, 2, 3]}
    merged = read_values(b"a: &a {x: 1}\nb: {<<: *a, y: 2}\n", limits=LIMITS, object_of=dict)
    assert merged["b"] == {"x": 1, "y": 2}


def test_a_long_text_without_aliases_is_not_measured_by_them():
    text = "[" + ",".join(["1"] * 100_000) + "]"
    assert len(read_document(text.encode(), limits=LIMITS, fast=True).value) == 100_000
