"""Which of the workflows that a caller may see it wants to see."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from catalogue.exposure import ExposedCatalogue
from catalogue.models import Workflow
from catalogue.search import search_workflows

MOST_KNOWN = 50
"""Tags or sources that are named to whoever asked for one that there is not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What a list is narrowed by; nothing that is empty narrows it."""

    tags: Sequence[str] = ()
    """A workflow has to carry all of them."""
    source: str = ""
    query: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What was found; where that is nothing, why, and what there is instead."""

    workflows: list[Workflow]
    """The best first where there is a query, else by name."""
    hint: str = ""
    known_tags: Sequence[str] = ()
    """The most used first, at most 50."""
    known_sources: Sequence[str] = ()


def select_workflows(catalogue: ExposedCatalogue, wish: Wish, *, toolset: str | None = None) -> Selection:
    shown = catalogue.seen_through(toolset)
    names = search_workflows(catalogue, wish.query, toolset=toolset) if wish.query else shown
    source = wish.source.casefold()
    found = [
        workflow
        for workflow in tagged(map(shown.__getitem__, names), wish.tags)
        if source in ("", workflow.source.name.casefold())
    ]
    return Selection(workflows=found) if found else _nothing_found(wish, list(shown.values()))


def tagged(workflows: Iterable[Workflow], tags: Iterable[str]) -> list[Workflow]:
    """Those that carry every one of the tags, in any case of letters, in their order (D3)."""
    wanted = set(map(str.casefold, tags))
    return [workflow for workflow in workflows if wanted <= set(map(str.casefold, workflow.shown_tags))]


def _nothing_found(wish: Wish, shown: Sequence[Workflow]) -> Selection:
    if not shown:
        return Selection(workflows=[], hint="No workflow is shown here at present.")
    tags = _most_used(tag for workflow in shown for tag in workflow.shown_tags)
    sources = _most_used(workflow.source.name for workflow in shown)
    unknown = [f"tag {tag!r}" for tag in wish.tags if tag.casefold() not in map(str.casefold, tags)]
    if wish.source and wish.source.casefold() not in map(str.casefold, sources):
        unknown.append(f"source {wish.source!r}")
    return Selection(
        workflows=[],
        hint=_hint(wish, unknown),
        known_tags=tags[:MOST_KNOWN] if wish.tags or wish.query else (),
        known_sources=sources[:MOST_KNOWN] if wish.source else (),
    )


def _most_used(words: Iterable[str]) -> list[str]:
    used = Counter(words)
    return sorted(used, key=lambda word: (-used[word], word))


def _hint(wish: Wish, unknown: Sequence[str]) -> str:
    if unknown:
        return f"No workflow has the {' or the '.join(unknown)[:500]}."
    if wish.query and not (wish.tags or wish.source):
        return "Nothing has these words: try fewer or other ones, or list all without a query."
    return "No workflow has all of that: ask for less."
