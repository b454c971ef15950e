"""Plausible business workflows of very different sizes, the same in every run, and catalogues of them."""

import random
import secrets
from collections.abc import Iterator
from itertools import count as numbers
from typing import Any

from dev.benchmarks._workflow_texts import (
    ACTIONS,
    CLOSING_PARAGRAPHS,
    COMMON,
    DEPARTMENTS,
    Action,
    Department,
)

SEED = 20_261_121
PARAMETER_COUNTS = {0: 6, 1: 10, 2: 14, 3: 16, 4: 14, 5: 12, 6: 9, 7: 6, 8: 5, 9: 3, 10: 2, 11: 2, 12: 1}
"""How many of a hundred workflows have so many parameters."""
SENTENCES = {0: 25, 1: 25, 2: 20, 3: 12, 4: 8}
"""How many of a hundred descriptions have so many sentences after the first; the rest has paragraphs."""


def realistic_definitions(count: int) -> list[dict[str, Any]]:
    """Workflows as an engine lists them (A6.1). The first of more are those of fewer."""
    combinations = _combinations()
    return [_definition(number, *next(combinations)) for number in range(count)]


def _combinations() -> Iterator[tuple[Department, Action, str, str]]:
    """Each action on each thing once, in random order; then again, for one site after another."""
    order = [
        (department, action, thing)
        for department in DEPARTMENTS
        for thing in department.things
        for action in ACTIONS
    ]
    random.Random(SEED).shuffle(order)
    for site in numbers():
        for department, action, thing in order:
            yield department, action, thing, f"site_{site}" if site else ""


def _definition(number: int, department: Department, action: Action, thing: str, site: str) -> dict[str, Any]:
    dice = random.Random(SEED + number)
    name = "_".join(part for part in (action.verb, thing, site) if part)
    definition: dict[str, Any] = {
        "id": f"wf-{number + 1:04}",
        "name": name if dice.random() < 0.7 else name.replace("_", " ").capitalize(),
        "description": _description(dice, department, action, thing.replace("_", " ")),
        "category": department.name,
        "tags": _tags(dice, department, action),
        "inputSchema": _input_schema(dice, department),
    }
    if dice.random() < 0.6:
        definition["version"] = f"{dice.randint(1, 4)}.{dice.randint(0, 12)}.0"
    if dice.random() < 0.4:
        definition["author"] = f"{department.name.capitalize()} Systems"
    if action.output and dice.random() < 0.5:
        definition["executionType"] = "sync"
        definition["outputSchema"] = _without_empty({"type": "object", "properties": action.output})
    return definition


def _tags(dice: random.Random, department: Department, action: Action) -> list[str]:
    return [*department.tags[: dice.randint(1, 3)], *action.tags]


def _description(dice: random.Random, department: Department, action: Action, thing: str) -> str:
    remarks = _drawn(dice, SENTENCES)
    most = len(action.remarks)
    chosen = dice.sample(action.remarks, most if remarks is None else min(remarks, most))
    paragraphs = [" ".join([action.purpose, *chosen])]
    if remarks is None:
        paragraphs += dice.sample(CLOSING_PARAGRAPHS, dice.randint(1, len(CLOSING_PARAGRAPHS)))
    plural = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return "\n\n".join(paragraphs).format(thing=thing, things=plural, system=department.system)


def _input_schema(dice: random.Random, department: Department) -> dict[str, Any]:
    wanted = _drawn(dice, PARAMETER_COUNTS) or 0
    own = dice.sample(sorted(department.parameters), min((wanted * 2 + 2) // 3, len(department.parameters)))
    common = dice.sample(sorted(COMMON), wanted - len(own))
    properties = {name: department.parameters.get(name) or COMMON[name] for name in [*own, *common]}
    required = [name for name in own if "default" not in properties[name] and dice.random() < 0.6]
    return {
        "type": "object",
        "properties": {name: _without_empty(schema) for name, schema in properties.items()},
        **({"required": required} if required else {}),
        **({"additionalProperties": False} if dice.random() < 0.4 else {}),
    }


def _without_empty(schema: Any) -> Any:
    """Some parameters are left without a description, as in real life."""
    if isinstance(schema, list):
        return [_without_empty(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = ((key, value) for key, value in schema.items() if (key, value) != ("description", ""))
    return {key: _without_empty(value) for key, value in kept}


def _drawn(dice: random.Random, shares: dict[int, int]) -> int | None:
    """A number by its share of a hundred; None for what is left over."""
    left = dice.randrange(100)
    for number, share in shares.items():
        if (left := left - share) < 0:
            return number
    return None


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
