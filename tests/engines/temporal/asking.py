"""The dev server as a source of the product, whose runs answer queries and listen to signals."""

from typing import Any

from catalogue.actions.workflows import enable_workflows
from catalogue.discovery import refresh_source
from catalogue.models import Source, Workflow
from tests.engines.temporal.definitions import definitions
from tests.engines.temporal.server import DEFAULT_NAMESPACE, TemporalServer

A_AND_B = [{"a": {"type": "integer", "required": True}}, {"b": {"type": "integer", "required": True}}]
TEXT = [{"text": {"type": "string", "required": True}}]
TALKATIVE: dict[str, Any] = {
    "queries": {
        "progress": "How far it is.",
        "notes": "What it was told to note.",
        "refuse": "Always fails.",
        "unheard_of": "Declared, but the worker has no handler for it.",
        "add": {"description": "The sum.", "fields": A_AND_B},
    },
    "signals": {
        "finish": "Completes the run.",
        "note": {"description": "Adds a note.", "fields": TEXT},
    },
}


ASKING = {"asks": {"query": "open_questions", "update": "decide"}}


def make_temporal_source(
    server: TemporalServer, *, namespace: str = DEFAULT_NAMESPACE, **settings: Any
) -> Source:
    """Discovered and enabled; nobody waits for its runs, so that each is answered with a handle."""
    config = {
        "host_port": server.address,
        "namespace": namespace,
        "definitions": definitions(Lasting=TALKATIVE, Asking=ASKING),
    }
    source = Source.objects.create(name="temporal", kind="temporal", config=config)
    assert refresh_source(source).outcome == "succeeded"
    if settings:
        # Short patience is for the runs: on a busy machine it would be too short for the listing.
        source.config |= settings
        source.save()
    enable_workflows(Workflow.objects.filter(source=source))
    Workflow.objects.filter(source=source).update(inline_wait_seconds=0)
    return source
