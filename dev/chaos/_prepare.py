"""Makes a deployment ready, on its database: `python -m dev.chaos._prepare < wanted.json`.

Reads `{"sources": {name: settings}, "tokens": {name: scopes}}`, where the settings are a source's `config`,
`credentials` and `max_concurrent`; prints `{"tokens": {name: token}, "tools": {source: {workflow: tool}}}`.
"""

import json
import os
import sys
from functools import partial
from typing import Any


def prepare(wanted: dict[str, Any]) -> dict[str, Any]:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    from catalogue.database import bring_up_to_date
    from identity.tokens import create_token

    bring_up_to_date(partial(print, file=sys.stderr))

    return {
        "tools": {name: _connect(name, settings) for name, settings in wanted["sources"].items()},
        "tokens": {
            name: create_token(name=name, scopes=scopes)[1] for name, scopes in wanted["tokens"].items()
        },
    }


def _connect(name: str, settings: dict[str, Any]) -> dict[str, str]:
    from catalogue.curation import enable_workflows
    from catalogue.discovery import refresh_source
    from catalogue.models import Source, Workflow
    from catalogue.sources import create_source

    limit = settings.pop("max_concurrent")
    source = create_source(name=name, kind="simplified", **settings)
    Source.objects.filter(pk=source.pk).update(max_concurrent=limit)
    run = refresh_source(source)
    if not run.added:
        sys.exit(f"Source {name} has no workflows: {run.error}")
    workflows = Workflow.objects.filter(source=source)
    enable_workflows(workflows)
    return {workflow.name: workflow.tool_name for workflow in workflows}


if __name__ == "__main__":
    json.dump(prepare(json.load(sys.stdin)), sys.stdout)
