"""Finds the words of a text, in any script that separates them."""

import re
import unicodedata

# Python's \w knows letters and digits but not the combining marks that many scripts write vowels with.
MARKS = "".join(chr(code) for code in range(0x10000) if unicodedata.category(chr(code)).startswith("M"))
LETTER = rf"(?:[^\W_][{MARKS}]*)"
WORD = re.compile(rf"{LETTER}+(?:['’\-]{LETTER}+)*")  # noqa: RUF001


def find_words(text: str) -> list[str]:
    return WORD.findall(text)
