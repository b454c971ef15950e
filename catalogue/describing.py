"""What agents are told about workflows, in as few or as many words as they ask for.

Every door that lists or describes workflows for agents uses these, so that all of them say the same.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from catalogue.exposure import ExposedCatalogue
from catalogue.inputs import describe_inputs, describe_outputs, summarise_inputs
from catalogue.interactions import describe_interactions
from catalogue.models import Workflow
from catalogue.outages import Outage, current_outages, outages_seen_through

SHORT_DESCRIPTION = 150
"""Characters of a description in compact mode, before the "..."."""
TELLING = 40
"""Characters after which a description that is too long may end with its sentence: what is cut off in the
middle of the next one helps nobody to choose, and is paid for in each list."""
SENTENCE_END = re.compile(r"(?<![ .(]\w)[.!?](?= [^a-z])")
"""Not the full stops of "e.g." and of initials."""


class Mode(StrEnum):
    """How much a list tells of each workflow."""

    COMPACT = "compact"
    STANDARD = "standard"
    DETAILED = "detailed"


def summarise_workflow(workflow: Workflow, mode: Mode = Mode.COMPACT) -> dict[str, Any]:
    """One entry of a list (D1): `{name, description, tags, input_summary}`, or all of it in detailed mode."""
    described = workflow.shown_description
    summary: dict[str, Any] = {
        "name": workflow.tool_name,
        "description": shorten(described) if mode == Mode.COMPACT else described,
        "tags": workflow.shown_tags,
    }
    if mode != Mode.DETAILED:
        return summary | {"input_summary": summarise_inputs(workflow.offered_input_schema)}
    return summary | {
        "version": workflow.version,
        "author": workflow.author or None,
        "inputs": describe_inputs(workflow.offered_input_schema),
        "outputs": describe_outputs(workflow.output_schema),
    }


def describe_workflow(workflow: Workflow) -> dict[str, Any]:
    """Everything about one workflow that whoever calls it may know (D7); asks how its source is."""
    described: dict[str, Any] = {
        "name": workflow.tool_name,
        "title": workflow.title,
        "description": workflow.shown_description,
        "tags": workflow.shown_tags,
        "category": workflow.category,
        "version": workflow.version,
        "author": workflow.author or None,
        "source": workflow.source.name,
        "execution_type": workflow.effective_execution_type,
        "timeout_seconds": workflow.effective_timeout_seconds,
        "cache_seconds": workflow.effective_cache_seconds,
        "hints": workflow.effective_hints,
        "icons": workflow.shown_icons,
        "input_schema": workflow.served_input_schema,
        "output_schema": workflow.served_output_schema,
        **describe_interactions(workflow),
    }
    failing = [outage for outage in current_outages() if outage.source == workflow.source.name]
    return described | ({"unavailable_source": _describe_outages(failing)[0]} if failing else {})


def unavailable_sources(catalogue: ExposedCatalogue, *, toolset: str | None = None) -> list[dict[str, Any]]:
    """Engines whose present list we do not know, of those that whoever comes through the toolset sees.

    Each is `{source, since, reason, shown}`; `shown` says whether there is a last good list.
    """
    return _describe_outages(outages_seen_through(catalogue, current_outages(), toolset))


def _describe_outages(outages: Iterable[Outage]) -> list[dict[str, Any]]:
    return [
        {
            "source": outage.source,
            "since": outage.since and outage.since.isoformat(timespec="seconds"),
            "reason": outage.reason,
            "shown": "the last good list" if outage.was_listed else "nothing",
        }
        for outage in outages
    ]


def shorten(text: str, length: int = SHORT_DESCRIPTION) -> str:
    """On one line; what is longer ends after a whole sentence that tells enough, or a word, with "..."."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    if (sentence := SENTENCE_END.search(line, TELLING, length + 1)) is not None:
        return line[: sentence.start()] + "..."
    start, last_word_is_whole = line[:length], line[length] == " "
    kept = start if last_word_is_whole else start.rpartition(" ")[0] or start
    return kept.rstrip(" .,;:") + "..."


__all__ = [
    "Mode",
    "describe_workflow",
    "shorten",
    "summarise_inputs",
    "summarise_workflow",
    "unavailable_sources",
]
