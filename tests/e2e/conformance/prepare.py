"""Connects engines to a product: `python -m tests.e2e.conformance.prepare ENGINE SERVER`.

The addresses are those of the engine of this folder and of `tests/engines/conformance_server.py`. Run on the
product's data. What the suite wants as prompts is marked so. Prints a token for the engine.
"""

import os
import sys
from functools import partial


def prepare(engine: str, server: str) -> str:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()

    from catalogue.curation import override_workflow
    from catalogue.database import bring_up_to_date
    from catalogue.discovery import refresh_source
    from catalogue.models import Source, Workflow
    from catalogue.sources import create_source
    from identity.tokens import create_token
    from tests.e2e.conformance.workflows import WORKFLOWS

    bring_up_to_date(partial(print, file=sys.stderr))
    sources = {"conformance": ("simplified", "base_url", engine), "contents": ("mcp", "url", server)}
    for name, (kind, setting, address) in sources.items():
        source = create_source(
            name=name,
            kind=kind,
            config={setting: address} | ({"questions": "all"} if kind == "mcp" else {}),
            credentials={},
            new_workflows=Source.NewWorkflows.EXPOSED,
            refresh_interval=0,
        )
        run = refresh_source(source)
        if not run.added:
            sys.exit(f"Nothing was added from {name}. {run.error}")
    for workflow in Workflow.objects.filter(source__name="conformance"):
        fixture = WORKFLOWS[workflow.name]
        override_workflow(
            workflow, offered_as_prompt=fixture.is_prompt, inline_wait_seconds=fixture.inline_wait_seconds
        )
    return create_token(name="conformance", scopes=["catalogue:admin"])[1]


if __name__ == "__main__":
    print(prepare(*sys.argv[1:]))
