"""Counts what a text consists of."""

import re
import unicodedata
from collections import Counter

from examples.engine.progress import Progress
from examples.engine.runs import JsonObject
from examples.engine.workflows.definition import ExecutionType, Workflow
from examples.engine.workflows.schema import array, integer, number, record, text
from examples.engine.workflows.words import find_words

WORDS_PER_MINUTE = 238
# Keeps an answer that someone waits for within a second.
MAX_TEXT_LENGTH = 1_000_000
MOST_COMMON = 10

PARAGRAPH_BREAK = re.compile(r"\n\s*\n")
# Closing quotes and brackets may follow the full stop; East Asian full stops need no space after them.
SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?:\s+|$)|[。！？]+[」』”]*\s*")  # noqa: RUF001


def count_everything(given: JsonObject, progress: Progress) -> JsonObject:
    # Composed characters make an accented letter one character, however the text was typed.
    content = unicodedata.normalize("NFC", given["text"])
    words = find_words(content)
    frequencies = Counter(word.casefold() for word in words)
    return {
        "words": len(words),
        "unique_words": len(frequencies),
        "characters": len(content),
        "characters_without_spaces": len("".join(content.split())),
        "sentences": count_sentences(content),
        "paragraphs": sum(1 for block in PARAGRAPH_BREAK.split(content) if block.strip()),
        "lines": len(content.splitlines()),
        "average_word_length": round(sum(map(len, words)) / len(words), 2) if words else 0,
        "reading_time_seconds": round(len(words) / WORDS_PER_MINUTE * 60),
        "most_common_words": most_common(frequencies),
    }


def count_sentences(content: str) -> int:
    return sum(1 for piece in SENTENCE_END.split(content) if find_words(piece))


def most_common(frequencies: Counter[str]) -> list[JsonObject]:
    ranked = sorted(frequencies.items(), key=lambda entry: (-entry[1], entry[0]))
    return [{"word": word, "count": count} for word, count in ranked[:MOST_COMMON]]


WORKFLOW = Workflow(
    id="1001",
    name="text_statistics",
    description=(
        "Counts the words, sentences, paragraphs, lines and characters of a text and finds its most common "
        "words. Use it to check a length limit, estimate a reading time or compare drafts. Works for any "
        "language; scripts written without spaces count each unbroken stretch as one word. Returns the "
        f"counts, the average word length, the reading time at {WORDS_PER_MINUTE} words per minute and up to "
        f"{MOST_COMMON} most common words regardless of case."
    ),
    category="Text",
    execution_type=ExecutionType.SYNC,
    tags=("text", "statistics", "readability"),
    input_schema=record(
        "The text to measure.",
        {
            "text": text(
                "Plain text in any language. Separate paragraphs with an empty line.",
                maxLength=MAX_TEXT_LENGTH,
            )
        },
    ),
    output_schema=record(
        "What the text consists of.",
        {
            "words": integer("How many words the text has."),
            "unique_words": integer("How many different words, regardless of case."),
            "characters": integer("How many characters, spaces and line breaks included."),
            "characters_without_spaces": integer("How many characters that are not white space."),
            "sentences": integer("How many sentences; an abbreviation such as 'e.g. ' counts as an end."),
            "paragraphs": integer("How many blocks of text separated by empty lines."),
            "lines": integer("How many lines, empty ones included."),
            "average_word_length": number("Average number of characters of a word."),
            "reading_time_seconds": integer("Estimated time to read the text silently."),
            "most_common_words": array(
                "The most frequent words, most frequent first.",
                record(
                    "A word and its frequency.",
                    {"word": text("The word in lower case."), "count": integer("How often it occurs.")},
                ),
            ),
        },
    ),
    example={"text": "The cat sat on the mat. The dog didn't mind."},
    execute=count_everything,
)
