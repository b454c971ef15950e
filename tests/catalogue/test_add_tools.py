"""`manage.py add_tools`"""

import io
import json
from io import StringIO
from types import SimpleNamespace

import pytest
import yaml
from django.core.management import CommandError, call_command

from catalogue.models import Source, Workflow
from tests.declared_tools import API, BEARER, TOKEN, declared

pytestmark = pytest.mark.django_db


def add_tools(*arguments: str) -> str:
    out = StringIO()
    call_command("add_tools", *arguments, stdout=out, no_color=True)
    return out.getvalue()


@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump], ids=["JSON", "YAML"])
@pytest.mark.parametrize("form", ["one", "list", "object"])
def test_tools_are_stored_from_a_file(tmp_path, write, form):
    """C1.1, C1.4"""
    tools = [declared(api={"authentication": BEARER}), declared("other")]
    content = {"one": tools[0], "list": tools, "object": {"tools": tools, "source": "orders"}}[form]
    if form == "object":
        tools[1]["api"]["authentication"] = BEARER
    file = tmp_path / "tools.txt"
    file.write_text(write(content))

    told = add_tools(str(file))

    assert "get_order" in told and "added" in told
    assert Workflow.objects.filter(enabled=True).count() == (1 if form == "one" else 2)
    assert TOKEN not in told


def test_standard_input_is_read_and_options_win_over_the_text(monkeypatch):
    """C1.1, A4.2"""
    text = json.dumps({"tools": [declared()], "source": "one", "expose": True}).encode()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))

    told = add_tools("-", "--source", "another", "--hidden")

    assert told.splitlines() == [
        "Source another: new",
        "  get_order  added (another), not shown to agents: disabled",
    ]
    assert Source.objects.get().name == "another"


def test_a_dry_run_stores_nothing(tmp_path):
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(declared()))

    told = add_tools(str(file), "--dry-run")

    assert told.splitlines()[-1] == "Nothing was stored." and "get_order  added" in told
    assert not Source.objects.exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (json.dumps([declared(), declared("other", method="FETCH")]), "other: /1/api/method: "),
        (json.dumps(declared() | {"source": "mine"}), '/source: Put this beside the tools: {"source": '),
        (
            json.dumps(declared(endpoint=f"{API}/{{nobody}}", input_schema={"type": "object"})),
            "/api/endpoint: ",
        ),
        ('{"name": ', "not valid JSON"),
        ("name: [", "line 1"),
        ("name: a\nname: b\n", "line 2"),
        ("", "the document is empty"),
        ("x" * 5_000_000, "larger than"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path, text, told):
    """A5.3, C1.4"""
    file = tmp_path / "tools"
    file.write_text(text)

    with pytest.raises(CommandError) as refused:
        add_tools(str(file))

    assert str(refused.value).startswith("Nothing was stored.\n") and told in str(refused.value)
    assert not Workflow.objects.exists()


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(CommandError, match="No such file"):
        add_tools(str(tmp_path / "nowhere.json"))
