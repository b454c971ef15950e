"""Catalogues of any size in this process's database, without an engine behind them."""

import secrets

from benchmarks._workflows import realistic_definitions


def fill_catalogue(count: int) -> None:
    """Add a source with so many workflows, all of them exposed."""
    from catalogue.models import Revision, Source, Workflow
    from catalogue.naming import make_tool_name
    from catalogue.reconciliation import read_listing
    from connectors.definitions import parse_definition

    source = Source.objects.create(name=f"filled-{secrets.token_hex(4)}", kind="simplified", enabled=True)
    definitions = enumerate(realistic_definitions(count))
    listing = read_listing(parse_definition(raw, position=position) for position, raw in definitions)
    assert not listing.skipped, listing.skipped[:3]
    taken = set(Workflow.objects.values_list("tool_name", flat=True))
    workflows = []
    for upstream_id, layer in listing.layers.items():
        name = make_tool_name(
            name=layer["name"], upstream_id=upstream_id, source_name=source.name, taken=taken
        )
        taken.add(name)
        workflows.append(Workflow(source=source, tool_name=name, enabled=True, **layer))
    Workflow.objects.bulk_create(workflows, batch_size=500)
    Revision.bump()
