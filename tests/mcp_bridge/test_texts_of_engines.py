"""Engines change their workflows in thousands of small steps; agents read no text that no person accepted."""

import json
import random
import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from catalogue.curation import enable_workflows
from catalogue.descriptions import Mode, describe_workflow, summarise_workflow
from catalogue.discovery import refresh_source
from catalogue.exposure import ExposedCatalogue, forget_catalogue, load_exposed_catalogue
from catalogue.history import command
from catalogue.models import Review, Workflow
from catalogue.review import accept_offers, keep_accepted, offers_of
from mcp_bridge.prompts import workflow_prompt
from mcp_bridge.tool_lists import workflow_tool
from tests.catalogue.engine import Engine
from tests.factories import make_source
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.test_endpoint import modern
from tests.thoroughness import THOROUGH

BY = command("review_changes")
WORKFLOWS, ROUNDS = 200, 50 if THOROUGH else 12
Definition = dict[str, Any]
Place = tuple[str, ...]
Text = tuple[Place, str]
Random = random.Random
numbers = count()


def clone(value: Any) -> Any:
    return json.loads(json.dumps(value))


def fresh(chance: Random) -> str:
    """Words that no other change uses, and some that are not even suspicious."""
    return f"{chance.choice(['then read', 'of the', 'see', 'report'])} zq{next(numbers)}"


def an_input(definition: Definition, chance: Random) -> Any:
    """The schema of one of its arguments or result fields."""
    schema = definition[chance.choice(["inputSchema", "inputSchema", "outputSchema"])]
    schemas = [one for one in schema["properties"].values() if isinstance(one, dict)]
    nested = [inner for one in schemas for inner in one.get("properties", {}).values()]
    return chance.choice([*schemas, *nested, schema])


def schema_of(definition: Definition, chance: Random) -> Any:
    return definition[chance.choice(["inputSchema", "outputSchema"])]


def misspell(text: str, chance: Random) -> str:
    at = chance.randrange(len(text))
    return text[:at] + chance.choice("abcdefgh ,.\u200b\u00a0") + text[at + chance.randrange(2) :]


def reword(definition: Definition, chance: Random) -> None:
    field = chance.choice(["name", "title", "description", "category", "author"])
    was = definition[field] or "x"
    definition[field] = chance.choice([fresh(chance), misspell(was, chance), was[: len(was) // 2 + 1], ""])
    definition["name"] = definition["name"] or "report"


def reword_argument(definition: Definition, chance: Random) -> None:
    inner, keyword = (
        an_input(definition, chance),
        chance.choice(["title", "description", "format", "pattern"]),
    )
    was = inner.get(keyword, "a word")
    inner[keyword] = chance.choice([fresh(chance), misspell(was, chance), was])


def space_out(definition: Definition, chance: Random) -> None:
    for place in (definition, an_input(definition, chance)):
        if "description" in place:
            place["description"] = place["description"].replace(" ", chance.choice(["  ", "\n", " \t "]))


def drop(definition: Definition, chance: Random) -> None:
    inner = an_input(definition, chance)
    optional = [name for name in inner if name not in ("type", "properties")]
    if optional:
        del inner[chance.choice(optional)]


def add_argument(definition: Definition, chance: Random) -> None:
    schema = schema_of(definition, chance)
    schema["properties"][f"a{next(numbers)}"] = {"type": "string", "description": fresh(chance)}


def add_named_as_before(definition: Definition, chance: Random) -> None:
    """An argument may come back with other words."""
    schema_of(definition, chance)["properties"].setdefault("month", {"description": fresh(chance)})


def drop_argument(definition: Definition, chance: Random) -> None:
    schema = schema_of(definition, chance)
    if len(schema["properties"]) > 1:
        del schema["properties"][chance.choice([*schema["properties"]])]


def require(definition: Definition, chance: Random) -> None:
    schema = schema_of(definition, chance)
    schema["required"] = chance.sample([*schema["properties"]], k=1)
    if chance.random() < 0.2:
        schema["required"].append(fresh(chance))


def require_nothing(definition: Definition, chance: Random) -> None:
    schema_of(definition, chance).pop("required", None)


def set_bound(definition: Definition, chance: Random) -> None:
    inner = an_input(definition, chance)
    inner[chance.choice(["maximum", "maxLength", "minimum", "minLength"])] = chance.randrange(100)


def widen_type(definition: Definition, chance: Random) -> None:
    inner = an_input(definition, chance)
    if "properties" not in inner:
        inner["type"] = chance.choice(["string", "number", "integer", ["string", "null"]])


def change_values(definition: Definition, chance: Random) -> None:
    inner = an_input(definition, chance)
    values = inner.setdefault("enum", ["pdf", 1])
    values.append(chance.choice([fresh(chance), chance.randrange(10)]))
    if chance.random() < 0.5:
        values.pop(chance.randrange(len(values)))
    inner["enum"] = list({json.dumps(value): value for value in values}.values()) or ["pdf"]


def annotate(definition: Definition, chance: Random) -> None:
    keyword = chance.choice(["default", "examples", "$comment", "x-note", "const", "hint", "deprecated"])
    value: Any = {"examples": [fresh(chance)], "deprecated": True}.get(keyword, fresh(chance))
    an_input(definition, chance)[keyword] = value


def define(definition: Definition, chance: Random) -> None:
    schema = schema_of(definition, chance)
    schema.setdefault("$defs", {})[f"d{next(numbers) % 7}"] = {"type": "string", "title": fresh(chance)}


def swap_texts(definition: Definition, chance: Random) -> None:
    one, other = an_input(definition, chance), an_input(definition, chance)
    first, second = one.get("description", "none"), other.get("description", "none")
    one["description"], other["description"] = second, first


def move_text(definition: Definition, chance: Random) -> None:
    an_input(definition, chance)["description"] = definition["description"] or "none"


def retag(definition: Definition, chance: Random) -> None:
    tags = definition["tags"]
    chance.choice([lambda: tags.append(fresh(chance)), tags.clear, lambda: chance.shuffle(tags)])()


def release(definition: Definition, chance: Random) -> None:
    ours = [f"{chance.randrange(9)}.{chance.randrange(99)}.{chance.randrange(99)}", "v2-rc.1", fresh(chance)]
    definition["version"] = chance.choice(ours)


def change_icon(definition: Definition, chance: Random) -> None:
    address = f"https://engine.example.com/zq{next(numbers)}.png"
    definition["icons"] = chance.choice([[], [{"src": address}]])


def talk(definition: Definition, chance: Random) -> None:
    kind = chance.choice(["queries", "signals"])
    told = {"name": f"q{next(numbers) % 3}", "description": fresh(chance)}
    definition[kind] = chance.choice([[], [told], [*definition[kind][:1], told]])


def change_unread(definition: Definition, chance: Random) -> None:
    definition["timeout_seconds"] = 1 + chance.randrange(100)
    definition["annotations"] = {"readOnlyHint": chance.random() < 0.5, "title": definition["title"]}


CHANGES: list[Callable[[Definition, Random], None]] = [
    *(reword, reword_argument, space_out, drop, add_argument, add_named_as_before, drop_argument, require),
    *(require_nothing, set_bound, widen_type, change_values, annotate, define, swap_texts, move_text, retag),
    *(release, change_icon, talk, change_unread),
]


def original(number: int) -> Definition:
    month = {
        "type": "string",
        "title": "Month",
        "description": "The month of it.",
        "examples": ["May", "June"],
    }
    address = {"type": "object", "properties": {"street": {"type": "string", "description": "A street."}}}
    kind = {"type": "string", "enum": ["pdf", "csv", 1], "default": "pdf"}
    arguments = {
        "month": month,
        "address": address,
        "kind": kind,
        "copies": {"type": "integer", "maximum": 9},
    }
    results = {"total": {"type": "number", "description": "Of all."}, "state": {"type": "string"}}
    return {
        "id": f"wf-{number}",
        "name": f"report_{number}",
        "title": f"Report {number}",
        "description": f"Makes report {number} of all open orders.",
        "category": "finance",
        "version": "1.0.0",
        "author": "Ada",
        "tags": ["orders", "finance"],
        "inputSchema": {"type": "object", "properties": arguments, "required": ["month", "kind"]},
        "outputSchema": {"type": "object", "properties": results, "required": ["total"]},
        "queries": [{"name": "state", "description": "Where it is.", "inputSchema": {"type": "object"}}],
        "signals": [],
        "icons": [],
    }


# What agents read


WORD = re.compile(r"[^\s(),]+")
TYPES = {"string", "integer", "number", "boolean", "object", "array", "null", "any", "never", "or"}
TYPE_AT_THE_END = re.compile(r" ?\((JSON )?[a-z ]+\)$")  # In prompts, which have no types
VERSION = re.compile(r"[v0-9.]+(-rc\.1)?")
OURS = {"optional", "required", "No", "inputs", "any", "object"} | TYPES
STANDARD = {"type", "maximum", "maxLength", "minimum", "minLength", "deprecated", "enum"}


def texts_in(value: Any, place: Place = ()) -> Iterator[Text]:
    if isinstance(value, str) and value:
        value = TYPE_AT_THE_END.sub("", value) if place[:2] == ("prompt", "arguments") else value
        yield place, " ".join(value.split()) if place[-1:] == ("description",) else value
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item, place)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield place, key
            yield from texts_in(item, (*place, key))


def documents_of(workflow: Workflow) -> dict[str, Any]:
    """As the doors make them."""
    return {
        "tool": workflow_tool(workflow).model_dump(by_alias=True, mode="json", exclude_none=True),
        "prompt": workflow_prompt(workflow).model_dump(by_alias=True, mode="json", exclude_none=True),
        "info": describe_workflow(workflow),
        "compact": summarise_workflow(workflow),
        "detailed": summarise_workflow(workflow, Mode.DETAILED),
    }


def unaccepted(read: set[Text], accepted: set[Text]) -> list[Text]:
    """Without the words of the product and of JSON Schema, and with names and the title where they recur."""
    if not (new := read - accepted):
        return []
    known = {text for _, text in accepted}
    words = OURS | {word for text in known for word in WORD.findall(text)}

    def is_known(place: Place, text: str) -> bool:
        if place[-1:] in (("required",), ("title",)) and "properties" not in place:
            return text in known
        if place[-1:] in (("input_summary",), ("type",)):
            return words.issuperset(WORD.findall(text))
        is_version = place[-1:] == ("version",) and VERSION.fullmatch(text)
        return bool(is_version) or text in STANDARD or (place[-1:] == ("required",) and text in known)

    return [(place, text) for place, text in new if not is_known(place, text)]


class Desk:
    """What a person has accepted of each workflow, and what agents read of it."""

    def __init__(self) -> None:
        self.accepted: dict[str, set[Text]] = {}
        self._catalogue: ExposedCatalogue | None = None
        self._read: dict[str, tuple[Workflow, set[Text]]] = {}

    def read(self) -> dict[str, set[Text]]:
        """Of the workflows whose rows have changed."""
        self._catalogue = load_exposed_catalogue(self._catalogue)
        changed = {}
        for name, workflow in self._catalogue.workflows.items():
            if name not in self._read or self._read[name][0] is not workflow:
                changed[name] = set(texts_in(documents_of(workflow)))
                self._read[name] = workflow, changed[name]
        return changed

    def accept(self, names: list[str]) -> None:
        self.read()
        for name in names:
            workflow, read = self._read[name]
            # The name stands in for a title that goes.
            self.accepted.setdefault(name, set()).update(read, {((), workflow.name)})

    def check(self) -> None:
        for name, read in self.read().items():
            assert not unaccepted(read, self.accepted[name]), name


def said_over_the_wire(server: McpServer, token: str, names: list[str]) -> str:
    """By every door of the MCP server that describes workflows."""
    forget_catalogue()

    def ask(method: str, **params: Any) -> str:
        body, headers = modern(method, **params)
        if "uri" in params:
            headers["mcp-name"] = params["uri"]
        answer = server.post(body, token=token, headers=headers)
        assert '"error"' not in answer.text and '"isError":true' not in answer.text, answer.text
        return answer.text

    detailed = {"name": "list_workflows", "arguments": {"mode": "detailed"}}
    texts = [ask(method) for method in ("tools/list", "prompts/list", "resources/list", "server/discover")]
    texts.append(ask("tools/call", **detailed))
    for name in names:
        texts.append(ask("tools/call", name="get_workflow_info", arguments={"name": name}))
        texts += [ask("resources/read", uri=f"workflow://{kind}/{name}") for kind in ("metadata", "schema")]
    return "".join(texts)


@pytest.mark.timeout(300)
def test_after_ten_thousand_small_changes_agents_read_no_text_that_no_person_accepted(mcp_server, token):
    """H1, H2: whatever an engine tries, in whatever order, while people accept, turn down and wait."""
    chance, desk = random.Random(42), Desk()
    with Engine() as engine:
        engine.workflows = [original(number) for number in range(WORKFLOWS)]
        source = make_source("erp", base_url=engine.base_url)
        refresh_source(source)
        enable_workflows(Workflow.objects.all())
        Workflow.objects.update(offered_as_prompt=True)
        desk.accept([*load_exposed_catalogue().workflows])
        served = clone(engine.workflows)
        followed = held = 0
        for _ in range(ROUNDS):
            for definition in engine.workflows:
                chance.choice(CHANGES)(definition, chance)
            run = refresh_source(source)
            followed, held = followed + run.updated, held + run.held
            assert run.found == WORKFLOWS and run.skipped_count == 0, run.skipped
            desk.check()
            offers = offers_of(Review.objects.awaiting())
            keys = chance.sample([*offers], k=len(offers) // 6)
            desk.accept(accept_offers({key: offers[key] for key in keys[::2]}, by=BY).done)
            keep_accepted({key: offers[key] for key in keys[1::2]}, by=BY)
            waiting = set(Review.objects.values_list("workflow__upstream_id", flat=True))
            for at, definition in enumerate(engine.workflows):
                if definition["id"] not in waiting:
                    served[at] = clone(definition)
                elif chance.random() < 0.5:
                    engine.workflows[at] = clone(served[at])
        assert min(followed, held) > 20 * ROUNDS, "the walk went both ways"
        said = said_over_the_wire(mcp_server, token, [*desk.accepted][:10])
    accepted = {word for texts in desk.accepted.values() for _, text in texts for word in WORD.findall(text)}
    assert set(re.findall(r"zq[0-9]+", said)) <= {
        found for word in accepted for found in re.findall(r"zq[0-9]+", word)
    }
