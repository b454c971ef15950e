"""Ranked search over what is exposed: one index in memory, the same on every database.

Words are weighed by BM25 (k1, b) over three fields as if they were one text, in which a word of a name counts
as often as its field's weight says. docs/decisions/0016-search.md tells why it is not the database's.
"""

from __future__ import annotations

import math
import re
import threading
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from catalogue.exposure import ExposedCatalogue
from catalogue.models import Workflow
from catalogue.words import split_name, split_words

LONGEST_QUERY = 1_000
"""Characters; what is beyond does not count."""
MOST_QUERY_WORDS = 24
NAME_WEIGHT, TAG_WEIGHT, TEXT_WEIGHT = 4, 2, 1
K1, B = 1.2, 0.6
SHORTEST_BEGINNING = 3
"""Bytes of a query's word from which it also stands for all words that begin with it: three letters, or
one syllable or ideograph of the scripts in which that says as much."""
MOST_ENDINGS = 50
SHORTEST_INFLECTED = 5
"""Letters from which it also stands for all words that share most of its beginning: approval, approve."""
STEM = 0.6
"""How much of the word that is."""
BEGINNING_WORTH, INFLECTION_WORTH = 0.5, 0.3
"""Against the word itself."""
NEEDED_SHARE = 0.5
"""Of the query's words, by their weight: who has less of them is not found."""
NAMED_WORTH = 1.0
"""How much more a tool is worth all of whose name's words sentences have."""
QUOTED = re.compile(
    r"\"[^\"\n]{1,300}\"|\u201c[^\u201d\n]{1,300}\u201d|`[^`\n]{1,300}`"
    r"|(?<!\w)['\u2018][^'\u2019\n]{1,300}['\u2019](?!\w)"
)
OF_VALUES = re.compile(r"[/@#_\\\d]")
"""Digits, and signs of addresses: what has one is the value of an argument."""
LONGEST_INSTRUCTIONS = 4_000
"""Characters; what is beyond does not count."""
PUNCTUATION = ".,;:!?()'\""
SMALL_WORDS = frozenset({
    "a", "about", "again", "all", "also", "am", "an", "and", "any", "are", "as", "ask", "at", "be",
    "been", "between", "by", "can", "could", "did", "do", "does", "done", "each", "every", "find",
    "for", "from", "get", "give", "had", "has", "have", "he", "her", "here", "him", "his", "how", "i",
    "if", "in", "into", "is", "it", "its", "just", "know", "let", "like", "make", "many", "may", "me",
    "much", "must", "my", "need", "no", "not", "now", "of", "on", "one", "or", "our", "out", "over",
    "please", "she", "should", "show", "so", "some", "tell", "than", "thank", "thanks", "that", "the",
    "their", "them", "then", "there", "these", "they", "this", "to", "too", "us", "using", "want",
    "was", "we", "were", "what", "when", "where", "which", "who", "whom", "whose", "why", "will",
    "with", "would", "you", "your"
})  # fmt: skip
"""English ones, and verbs with which everything is asked for; those of other languages no tool has."""


def search_workflows(catalogue: ExposedCatalogue, query: str, *, toolset: str | None = None) -> list[str]:
    """Tool names of what the query finds among what the toolset shows, the best first.

    A query is words, in any order; those that nothing has do not count. Nothing in it is an operator.
    """
    return search_among(catalogue, query, catalogue.seen_through(toolset))


def search_among(catalogue: ExposedCatalogue, query: str, names: Iterable[str]) -> list[str]:
    """The same among these tools; what is not exposed is not found."""
    return _remembered.index_of(catalogue).search(query, among=names)


def rank_for_instructions(catalogue: ExposedCatalogue, instructions: str, names: Iterable[str]) -> list[str]:
    """All of these tools that the sentences have anything in common with, the likeliest first.

    Sentences have much that no query has: what is in quotes, numbers and addresses are values of arguments,
    and small words say nothing. On the other hand few tools have most of their words, so none is needed.
    """
    kept = (
        word
        for word in QUOTED.sub(" ", instructions[:LONGEST_INSTRUCTIONS]).split()
        if not OF_VALUES.search(word) and word.strip(PUNCTUATION).casefold() not in SMALL_WORDS
    )
    keywords = list(dict.fromkeys(split_words(" ".join(kept))))[:MOST_QUERY_WORDS]
    return _remembered.index_of(catalogue).rank(keywords, among=names)


class _Match(NamedTuple):
    """How a document has a word of the query."""

    worth: float
    weight: float


@dataclass(slots=True)
class _Postings:
    """Where a word occurs, and how much it weighs there; in arrays, since there are many."""

    documents: array[int] = field(default_factory=lambda: array("I"))
    weights: array[float] = field(default_factory=lambda: array("f"))

    def add(self, document: int, weight: float) -> None:
        self.documents.append(document)
        self.weights.append(weight)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self.documents, self.weights, strict=True)


class SearchIndex:
    """The words of some workflows. Immutable once built, so that threads may share it."""

    def __init__(self, workflows: Iterable[Workflow]) -> None:
        self._names: list[str] = []
        postings: defaultdict[str, _Postings] = defaultdict(_Postings)
        counted: list[Counter[str]] = []
        for workflow in workflows:
            self._names.append(workflow.tool_name)
            counted.append(_count_words(workflow))
        lengths = [counts.total() for counts in counted]
        usual = sum(lengths) / len(lengths) if lengths else 1.0
        for document, (counts, length) in enumerate(zip(counted, lengths, strict=True)):
            damping = K1 * (1 - B + B * length / usual)
            for word, count in counts.items():
                postings[word].add(document, count * (K1 + 1) / (count + damping))
        self._postings = dict(postings)
        self._vocabulary = sorted(postings)

    def search(self, query: str, *, among: Iterable[str]) -> list[str]:
        """Ranked names; equally good ones in alphabetical order."""
        scores, shares = self._weigh(_query_words(query), self._numbers_of(among))
        needed = NEEDED_SHARE * max(shares.values(), default=0.0)
        return self._ordered({number: scores[number] for number, share in shares.items() if share >= needed})

    def rank(self, words: Collection[str], *, among: Iterable[str]) -> list[str]:
        """The same of everything that has any of the words; by its name above all."""
        scores, _ = self._weigh(words, self._numbers_of(among))
        return self._ordered(
            {
                number: score * (1 + NAMED_WORTH * self._named_by(words, number))
                for number, score in scores.items()
            }
        )

    def _named_by(self, words: Collection[str], number: int) -> float:
        """How many of the words of its name are said, from 0 to 1."""
        own = split_words(self._names[number])
        stems = {word[:SHORTEST_INFLECTED] for word in words}
        return sum(word[:SHORTEST_INFLECTED] in stems for word in own) / (len(own) or 1)

    def _numbers_of(self, names: Iterable[str]) -> set[int]:
        allowed = set(names)
        return {number for number, name in enumerate(self._names) if name in allowed}

    def _ordered(self, scores: Mapping[int, float]) -> list[str]:
        return [self._names[number] for number in sorted(scores, key=lambda n: (-scores[n], self._names[n]))]

    def _weigh(self, words: Iterable[str], documents: set[int]) -> tuple[dict[int, float], dict[int, float]]:
        """By document: how good it is, and how much of the words it has."""
        scores: defaultdict[int, float] = defaultdict(float)
        shares: defaultdict[int, float] = defaultdict(float)
        for word in words:
            matches = self._matches(word, documents)
            rarity = _rarity(sum(match.worth for match in matches.values()), len(documents))
            for document, match in matches.items():
                scores[document] += rarity * match.worth * match.weight
                shares[document] += rarity * match.worth
        return scores, shares

    def _matches(self, word: str, allowed: set[int]) -> dict[int, _Match]:
        """How well each document has the word, by the closest of its readings that it has."""
        matches: dict[int, _Match] = {}
        for worth, read_as in self._readings(word):
            closer = set(matches)
            for postings in map(self._postings.get, read_as):
                for document, weight in postings or ():
                    if document not in allowed or document in closer:
                        continue
                    if (known := matches.get(document)) is None or known.weight < weight:
                        matches[document] = _Match(worth, weight)
        return matches

    def _readings(self, word: str) -> Iterator[tuple[float, list[str]]]:
        yield 1.0, [word]
        if len(word.encode()) >= SHORTEST_BEGINNING:
            yield BEGINNING_WORTH, self._beginning_with(word)
        if len(word) >= SHORTEST_INFLECTED:
            stem = word[: max(SHORTEST_INFLECTED - 1, round(STEM * len(word)))]
            yield INFLECTION_WORTH, self._beginning_with(stem)

    def _beginning_with(self, start: str) -> list[str]:
        first = bisect_left(self._vocabulary, start)
        candidates = self._vocabulary[first : first + MOST_ENDINGS]
        return [word for word in candidates if word.startswith(start)]


def _query_words(query: str) -> list[str]:
    return list(dict.fromkeys(split_words(query[:LONGEST_QUERY])))[:MOST_QUERY_WORDS]


def _rarity(having: float, of: int) -> float:
    """Always above 0, so that a word that all have finds them all."""
    return math.log(1 + (of - having + 0.5) / (having + 0.5))


def _count_words(workflow: Workflow) -> Counter[str]:
    """What agents are shown of it, and nothing else."""
    counts: Counter[str] = Counter()
    fields = (
        # The title is usually the name in other letters, which says nothing twice.
        (NAME_WEIGHT, {*split_name(workflow.tool_name), *split_name(workflow.title)}),
        (TAG_WEIGHT, {word for tag in workflow.shown_tags for word in split_name(tag)}),
        (TEXT_WEIGHT, split_words(workflow.shown_description)),
    )
    for weight, words in fields:
        for word in words:
            counts[word] += weight
    return counts


class _Remembered:
    """The index of the last catalogue that was searched, built when it is first asked for."""

    def __init__(self) -> None:
        self._building = threading.Lock()
        self._last: tuple[ExposedCatalogue, SearchIndex] | None = None

    def index_of(self, catalogue: ExposedCatalogue) -> SearchIndex:
        with self._building:
            if self._last is None or self._last[0] is not catalogue:
                self._last = (catalogue, SearchIndex(catalogue.workflows.values()))
            return self._last[1]


_remembered = _Remembered()
