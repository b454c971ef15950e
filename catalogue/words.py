"""Texts and names as the words that they are found by."""

import re
import unicodedata
from functools import lru_cache

MARKS = "\u0591-\u05bd\u064b-\u065f\u0900-\u0963\u0981-\u0dff\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
"""Vowels and tones of Hebrew, Arabic, India's scripts and Thai, which are no letters to Python."""
WORD = re.compile(rf"(?:[^\W_]|[{MARKS}])+")
HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where camelCase and HTTPServer begin a new word."""
ACCENTS = re.compile("[\u0300-\u036f]")
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")
"""Scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
MOST_JOINED = 4
PLURALS = (
    (re.compile(r"(?<=[^ea])ies$"), "y"),
    (re.compile(r"(?<=ss|sh)es$|(?<=tch)es$|(?<=x)es$"), ""),
    (re.compile(r"(?<=[^aeo])es$"), "e"),
    (re.compile(r"(?<=[^us])s$"), ""),
)
"""English only: elsewhere the beginning of a word finds it."""


def split_words(text: str) -> list[str]:
    """`sendInvoices_toÜnits` -> send, invoice, to, unit."""
    composed = HUMPS.sub(" ", fold(text))
    return [part for word in WORD.findall(composed) for part in _parts(word)]


def split_name(name: str) -> list[str]:
    """Short ones also in one piece, for whoever writes them without what separates the words."""
    words = split_words(name)
    if not 1 < len(words) <= MOST_JOINED:
        return words
    return [*words, "".join(WORD.findall(fold(name))).casefold()]


def fold(text: str) -> str:
    """Without accents, wide forms and ligatures; capitals stay."""
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", text)
    return unicodedata.normalize("NFC", ACCENTS.sub("", decomposed))


@lru_cache(maxsize=50_000)
def _parts(word: str) -> tuple[str, ...]:
    word = word.casefold()
    if word.isascii():
        return (_singular(word),)
    if not UNSPACED.search(word):
        return (word,)
    return tuple(part for piece in _pieces(word) for part in _pairs(piece))


def _singular(word: str) -> str:
    if len(word) < 4:
        return word
    for ending, instead in PLURALS:
        if ending.search(word):
            return ending.sub(instead, word)
    return word


def _pieces(word: str) -> list[str]:
    """Stretches of scripts with and without spaces between words, apart from each other."""
    return [piece for piece in re.split(f"({UNSPACED.pattern})", word) if piece]


def _pairs(piece: str) -> list[str]:
    """Two neighbouring characters at a time, where nothing tells where words end."""
    if not UNSPACED.fullmatch(piece) or len(piece) < 3:
        return [piece]
    return [piece[start : start + 2] for start in range(len(piece) - 1)]
