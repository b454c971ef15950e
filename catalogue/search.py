"""Ranked search over the exposed workflows: one index in memory, the same with every database. BM25 (k1, b)
weighs the words of three fields as one text, in which a word counts as often as its field's weight says.
docs/decisions/0019-search.md says why the database's own search is not used."""

from __future__ import annotations

import math
import re
import threading
import unicodedata
from array import array
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from access.callers import UNBOUNDED, Bounds
from catalogue.exposure import ExposedCatalogue
from catalogue.models import Workflow

MARKS = "\u0591-\u05bd\u064b-\u065f\u0900-\u0963\u0981-\u0dff\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
"""Vowels and tones of Hebrew, Arabic, Indian scripts and Thai, which Python does not count as letters."""
WORD = re.compile(rf"(?:[^\W_]|[{MARKS}])+")
HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # Of camelCase and HTTPServer
ACCENTS = re.compile("[\u0300-\u036f]")
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
MAX_JOINED = 4
PLURALS = (  # English only; other languages rely on beginnings of words
    (re.compile(r"(?<=[^ea])ies$"), "y"),
    (re.compile(r"(?<=ss|sh)es$|(?<=tch)es$|(?<=x)es$"), ""),
    (re.compile(r"(?<=[^aeo])es$"), "e"),
    (re.compile(r"(?<=[^us])s$"), ""),
)


def split_words(text: str) -> list[str]:
    """`sendInvoices_toÜnits` -> send, invoice, to, unit."""
    composed = HUMPS.sub(" ", fold(text))
    return [part for word in WORD.findall(composed) for part in _parts(word)]


def split_name(name: str) -> list[str]:
    """Short names also as one word, for queries without separators."""
    words = split_words(name)
    if not 1 < len(words) <= MAX_JOINED:
        return words
    return [*words, "".join(WORD.findall(fold(name))).casefold()]


def fold(text: str) -> str:
    """Removes accents, wide forms and ligatures; capitals stay."""
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
    stretches = filter(None, re.split(f"({UNSPACED.pattern})", word))
    return tuple(part for stretch in stretches for part in _pairs(stretch))


def _singular(word: str) -> str:
    if len(word) < 4:
        return word
    for ending, instead in PLURALS:
        if ending.search(word):
            return ending.sub(instead, word)
    return word


def _pairs(piece: str) -> list[str]:
    """Overlapping pairs of characters in scripts without word boundaries."""
    if not UNSPACED.fullmatch(piece) or len(piece) < 3:
        return [piece]
    return [piece[start : start + 2] for start in range(len(piece) - 1)]


MAX_QUERY = 1_000  # Characters; the rest is ignored
MAX_QUERY_WORDS = 24
NAME_WEIGHT, TAG_WEIGHT, TEXT_WEIGHT = 4, 2, 1
K1, B = 1.2, 0.6
MIN_BEGINNING = 3
"""Bytes of a query's word from which it also matches as a beginning: three letters, or one syllable or
ideograph in scripts where one carries as much meaning."""
MAX_ENDINGS = 50
MIN_INFLECTED = 5  # Letters from which it also matches words with the same stem: approval, approve
STEM = 0.6  # The share of the word that counts as most
BEGINNING_WORTH, INFLECTION_WORTH = 0.5, 0.3  # Relative to the word itself
NEEDED_SHARE = 0.5  # Of the weight of the query's words; results with less are dropped
MAX_UNUSED_SHARE = (
    0.1  # Of the documents of an index: more that changed or were replaced, and it is built again
)
NAMED_WORTH = 1.0  # The bonus of a tool whose name's words all occur in the sentences
QUOTED = re.compile(
    r"\"[^\"\n]{1,300}\"|\u201c[^\u201d\n]{1,300}\u201d|`[^`\n]{1,300}`"
    r"|(?<!\w)['\u2018][^'\u2019\n]{1,300}['\u2019](?!\w)"
)
OF_VALUES = re.compile(r"[/@#_\\\d]")  # Digits and signs of addresses, which mark values of arguments
MAX_INSTRUCTIONS = 4_000  # Characters; the rest is ignored
PUNCTUATION = ".,;:!?()'\""
SMALL_WORDS = frozenset({  # English function words, and verbs of requests; tools have none of other languages
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


def search_workflows(catalogue: ExposedCatalogue, query: str, bounds: Bounds = UNBOUNDED) -> list[str]:
    """Tool names that match the query within the bounds, the best first. Words may be in any order; unknown
    ones are ignored. There are no operators."""
    with _cache.index_of(catalogue) as index:
        return index.search(query, among=catalogue.seen_within(bounds))


def rank_for_instructions(catalogue: ExposedCatalogue, instructions: str, names: Iterable[str]) -> list[str]:
    """The given tools that share a word with the sentences, the likeliest first. Small words do not count,
    nor do quotes, numbers and addresses, which are values of arguments. Few tools have most of the words, so
    none is required."""
    said = QUOTED.sub(" ", instructions[:MAX_INSTRUCTIONS]).split()
    words = _split_once(" ".join(word for word in _without_small(said) if not OF_VALUES.search(word)))
    with _cache.index_of(catalogue) as index:
        return index.rank(words, among=names)


def find_alike(catalogue: ExposedCatalogue, workflow: Workflow, *, most: int) -> list[Workflow]:
    """Exposed workflows that share words with the name and title of this one, the likeliest first."""
    names = search_workflows(catalogue, f"{workflow.name} {workflow.title}")
    found = (catalogue.workflows[name] for name in names if name in catalogue.workflows)
    return [one for one in found if one.pk != workflow.pk][:most]


def _without_small(words: Iterable[str]) -> Iterator[str]:
    return (word for word in words if word.strip(PUNCTUATION).casefold() not in SMALL_WORDS)


def _split_once(text: str) -> list[str]:
    return list(dict.fromkeys(split_words(text)))[:MAX_QUERY_WORDS]


@dataclass(slots=True)
class _Postings:
    """The documents of a word and its weight in each; arrays, since there are many."""

    documents: array[int] = field(default_factory=lambda: array("I"))
    weights: array[float] = field(default_factory=lambda: array("f"))

    def add(self, document: int, weight: float) -> None:
        self.documents.append(document)
        self.weights.append(weight)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self.documents, self.weights, strict=True)


class SearchIndex:
    """Must not be used from several threads at once."""

    def __init__(self, workflows: Collection[Workflow]) -> None:
        counted = {workflow.tool_name: _count_words(workflow) for workflow in workflows}
        lengths = [counts.total() for counts in counted.values()]
        self._usual_length = sum(lengths) / len(lengths) if lengths else 1.0
        self._indexed = {workflow.tool_name: workflow for workflow in workflows}
        self._names: list[str] = []  # By document; replaced ones stay, without their number in `_numbers`
        self._numbers: dict[str, int] = {}
        self._postings: dict[str, _Postings] = {}
        for name, counts in counted.items():
            self._add(name, counts)
        self._vocabulary = sorted(self._postings)

    def follow(self, workflows: Mapping[str, Workflow]) -> bool:
        """Index new and replaced workflows, by tool name. False if a new index would cost less."""
        changed = [
            workflow for name, workflow in workflows.items() if self._indexed.get(name) is not workflow
        ]
        gone = self._indexed.keys() - workflows.keys()
        unused = len(self._names) + len(changed) - len(workflows)
        if unused > MAX_UNUSED_SHARE * len(workflows) or len(changed) > MAX_UNUSED_SHARE * len(workflows):
            return False
        for name in gone:
            del self._indexed[name], self._numbers[name]
        for workflow in changed:
            self._indexed[workflow.tool_name] = workflow
            for word in self._add(workflow.tool_name, _count_words(workflow)):
                insort(self._vocabulary, word)
        return True

    def _add(self, name: str, counts: Counter[str]) -> list[str]:
        """Returns the words that were not known before."""
        document = self._numbers[name] = len(self._names)
        self._names.append(name)
        damping = K1 * (1 - B + B * counts.total() / self._usual_length)
        new = []
        for word, count in counts.items():
            if (postings := self._postings.get(word)) is None:
                postings = self._postings[word] = _Postings()
                new.append(word)
            postings.add(document, count * (K1 + 1) / (count + damping))
        return new

    def search(self, query: str, *, among: Iterable[str]) -> list[str]:
        """Finds those with half of the words by weight; small words only affect the order, unless all are."""
        query = query[:MAX_QUERY]
        words = _split_once(query)
        needed = set(_split_once(" ".join(_without_small(query.split()))) or words)
        scores, shares = self._weigh(words, self._numbers_of(among), needed)
        least = NEEDED_SHARE * max(shares.values(), default=0.0)
        found = [number for number, share in shares.items() if share >= least]
        return self._ordered(found, scores, needed)

    def rank(self, words: Collection[str], *, among: Iterable[str]) -> list[str]:
        """All documents with any of the words."""
        scores, _ = self._weigh(words, self._numbers_of(among), set(words))
        return self._ordered(scores, scores, words)

    def _numbers_of(self, names: Iterable[str]) -> set[int]:
        return {self._numbers[name] for name in names if name in self._numbers}

    def _ordered(
        self, found: Iterable[int], scores: Mapping[int, float], words: Collection[str]
    ) -> list[str]:
        """The best first; a match of the name counts most."""
        stems = {word[:MIN_INFLECTED] for word in words}
        worth = {}
        for number in found:
            own = split_words(self._names[number])
            named = sum(word[:MIN_INFLECTED] in stems for word in own) / (len(own) or 1)
            worth[number] = scores[number] * (1 + NAMED_WORTH * named)
        return [self._names[number] for number in sorted(worth, key=lambda n: (-worth[n], self._names[n]))]

    def _weigh(
        self, words: Collection[str], documents: set[int], needed: Set[str]
    ) -> tuple[dict[int, float], dict[int, float]]:
        """Returns scores, and shares of the weight of the needed words, of documents with a needed word."""
        scores: defaultdict[int, float] = defaultdict(float)
        shares: defaultdict[int, float] = defaultdict(float)
        for word in sorted(words, key=needed.__contains__, reverse=True):
            readings = list(self._matches(word, documents))
            having = sum(worth * len(weights) for worth, weights in readings)
            # Always above 0, so that a word that all documents have still finds them.
            rarity = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
            for worth, weights in readings:
                for document in weights if word in needed else weights.keys() & scores.keys():
                    scores[document] += rarity * worth * weights[document]
                    if word in needed:
                        shares[document] += rarity * worth
        return scores, shares

    def _matches(self, word: str, allowed: set[int]) -> Iterator[tuple[float, dict[int, float]]]:
        """Each reading's worth, with the word's weight in documents that no closer reading matches."""
        left = allowed
        for worth, read_as in self._readings(word):
            weights: dict[int, float] = {}
            for postings in filter(None, map(self._postings.get, read_as)):
                for document, weight in postings:
                    if document in left and weight > weights.get(document, 0.0):
                        weights[document] = weight
            left = left - weights.keys()
            yield worth, weights

    def _readings(self, word: str) -> Iterator[tuple[float, list[str]]]:
        yield 1.0, [word]
        if len(word.encode()) >= MIN_BEGINNING:
            yield BEGINNING_WORTH, self._beginning_with(word)
        if len(word) >= MIN_INFLECTED:
            stem = word[: max(MIN_INFLECTED - 1, round(STEM * len(word)))]
            yield INFLECTION_WORTH, self._beginning_with(stem)

    def _beginning_with(self, start: str) -> list[str]:
        first = bisect_left(self._vocabulary, start)
        candidates = self._vocabulary[first : first + MAX_ENDINGS]
        return [word for word in candidates if word.startswith(start)]


def _count_words(workflow: Workflow) -> Counter[str]:
    counts: Counter[str] = Counter()
    fields = (
        # A set: the title is usually the name in other letters, and does not count twice.
        (NAME_WEIGHT, {*split_name(workflow.tool_name), *split_name(workflow.title)}),
        (TAG_WEIGHT, {word for tag in workflow.shown_tags for word in split_name(tag)}),
        (TEXT_WEIGHT, split_words(workflow.shown_description)),
    )
    for weight, words in fields:
        for word in words:
            counts[word] += weight
    return counts


class SearchIndexCache:
    """The index of the catalogue that was searched last, built on first use and then kept up to date."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._index = SearchIndex([])
        self._catalogue: ExposedCatalogue | None = None

    @contextmanager
    def index_of(self, catalogue: ExposedCatalogue) -> Iterator[SearchIndex]:
        with self._one_at_a_time:
            if self._catalogue is not catalogue:
                if not self._index.follow(catalogue.workflows):
                    self._index = SearchIndex(catalogue.workflows.values())
                self._catalogue = catalogue
            yield self._index


_cache = SearchIndexCache()
MAX_KNOWN = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowQuery:
    """The criteria of a list; empty ones do not narrow it."""

    tags: Sequence[str] = ()  # A workflow must have all of them
    source: str = ""
    query: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The workflows found; where there are none, a hint and alternatives."""

    workflows: list[Workflow]  # The best first with a query, else by name
    hint: str = ""
    known_tags: Sequence[str] = ()  # The most used first
    known_sources: Sequence[str] = ()


def select_workflows(catalogue: ExposedCatalogue, wanted: WorkflowQuery, bounds: Bounds) -> Selection:
    shown = catalogue.seen_within(bounds)
    names = search_workflows(catalogue, wanted.query, bounds) if wanted.query else shown
    source = wanted.source.casefold()
    found = [
        workflow
        for workflow in tagged(map(shown.__getitem__, names), wanted.tags)
        if source in ("", workflow.source.name.casefold())
    ]
    return Selection(workflows=found) if found else _nothing_found(wanted, list(shown.values()))


def tagged(workflows: Iterable[Workflow], tags: Iterable[str]) -> list[Workflow]:
    """Returns those with all of the tags, without regard to case, in their order (D3)."""
    wanted = set(map(str.casefold, tags))
    return [workflow for workflow in workflows if wanted <= set(map(str.casefold, workflow.shown_tags))]


def _nothing_found(wanted: WorkflowQuery, shown: Sequence[Workflow]) -> Selection:
    if not shown:
        return Selection(workflows=[], hint="No workflow is shown here at present.")
    tags = _most_used(tag for workflow in shown for tag in workflow.shown_tags)
    sources = _most_used(workflow.source.name for workflow in shown)
    unknown = [f"tag {tag!r}" for tag in wanted.tags if tag.casefold() not in map(str.casefold, tags)]
    if wanted.source and wanted.source.casefold() not in map(str.casefold, sources):
        unknown.append(f"source {wanted.source!r}")
    return Selection(
        workflows=[],
        hint=_hint(wanted, unknown),
        known_tags=tags[:MAX_KNOWN] if wanted.tags or wanted.query else (),
        known_sources=sources[:MAX_KNOWN] if wanted.source else (),
    )


def _most_used(words: Iterable[str]) -> list[str]:
    used = Counter(words)
    return sorted(used, key=lambda word: (-used[word], word))


def _hint(wanted: WorkflowQuery, unknown: Sequence[str]) -> str:
    if unknown:
        return f"No workflow has the {' or the '.join(unknown)[:500]}."
    if wanted.query and not (wanted.tags or wanted.source):
        return "No workflow matches these words: try fewer or other ones, or list all without a query."
    return "No workflow matches all of these criteria: use fewer."
