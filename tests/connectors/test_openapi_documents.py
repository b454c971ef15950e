"""Reading OpenAPI documents: JSON and YAML, of whatever size and shape."""

import json
from textwrap import dedent

import pytest

from connectors.http_tools.openapi.document import (
    MAX_BYTES,
    MAX_YAML_BYTES,
    Document,
    UnusableDocument,
    read_text,
)
from tests.connectors.openapi import document, read, the_refusal, the_tool, with_operation

YAML = dedent("""\
    openapi: 3.1.0
    info: {title: Orders, version: 1.0.0}
    servers: [{url: https://api.example.com/v1}]
    x-usual: &usual {tags: [orders], deprecated: no}
    paths:
      /orders:
        get:
          <<: *usual
          operationId: listOrders
          parameters:
            - {name: limit, in: query, schema: {type: integer, maximum: 18446744073709551615}}
          responses: {200: {description: OK}}
    """)


def refused(content: bytes) -> str:
    with pytest.raises(UnusableDocument) as error:
        Document.read(content)
    return str(error.value)


def test_yaml_is_read_with_anchors_merges_and_numbers_as_keys():
    """C1.4: `no` is a text in YAML 1.2, a number of 64 bits stays what it is."""
    operation = read_text(YAML.encode())["paths"]["/orders"]["get"]
    assert operation["tags"] == ["orders"] and operation["deprecated"] == "no"
    assert operation["parameters"][0]["schema"]["maximum"] == 2**64 - 1
    assert operation["responses"].keys() == {"200"}
    assert read(YAML).tools[0].definition.name == "listOrders"


@pytest.mark.parametrize(
    "version", ["3.0.0", "3.0.4", "3.1.1", "3.2.0", "3.2", "3", 3, 3.0, 3.1, "3.1.0-rc1"]
)
def test_every_version_3_is_read(version):
    """C1.4."""
    assert the_tool(with_operation({}, openapi=version)).definition.name == "op"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the document is empty"),
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"just words", "not a JSON object"),
        (b"a: [b", "cannot be read as YAML: line"),
        (b"a: b: c", "line 1: unexpected ':'"),
        (b"? [a]\n: b", "a key must be a string"),
        (b"\xff\xfe", "not UTF-8"),
        (b"{}", "it must have the key openapi"),
        (b'{"openapi": "4.0.0"}', "it must have the key openapi"),
        (b'{"swagger": "1.2"}', "Swagger 1.2 document. Convert it to Swagger 2.0 or OpenAPI 3 first"),
        # Each worker collects these, and one sends them.
        (lambda: b"{" + b" " * MAX_BYTES + b"}", "larger than 40,000,000 bytes"),
        (lambda: b"#" * (MAX_YAML_BYTES + 1), "the maximum for YAML"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "nested more than 100 levels"),
        (b"a:\n" + b"".join(b" " * n + b"- \n" for n in range(1, 200)), "nested deeper than 100"),
        (lambda: b'{"a": [' + b"0," * 2_000_000 + b"0]}", "more than 2,000,000 values"),
    ],
)
def test_what_is_no_document_is_refused_in_words(content, told):
    """C1.4."""
    assert told in refused(content() if callable(content) else content)


@pytest.mark.timeout(10)
def test_aliases_that_stand_for_billions_of_values_are_not_followed():
    """C1.4: in bounded time."""
    lines = ["openapi: 3.1.0", "l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "more than 2,000,000 values" in refused("\n".join(lines).encode())


@pytest.mark.timeout(10)
def test_a_key_that_stands_twice_among_very_many_is_found():
    """C1.4: in bounded time."""
    keys = ", ".join(f'"x-{number}": 1' for number in [*range(30_000), 29_999])
    raw = json.dumps(document({"/a": {"get": {"operationId": "a"}}}))
    raw = raw.replace('"get": {', f'"get": {{{keys}, ')
    assert [one.reason for one in read(raw).refused] == ['The key "x-29999" occurs twice in one object.']


@pytest.mark.parametrize("lone", ["", r"\ud83d"])
def test_a_key_that_stands_twice_refuses_what_needs_it_and_nothing_else(lone):
    """C1.4: nobody chooses between the two, also where half a character makes the text be read twice."""
    raw = json.dumps(document({"/a": {"get": {"operationId": "a"}}, "/b": {"get": {"operationId": "b"}}}))
    raw = raw.replace('"operationId": "b"', rf'"operationId": "b", "summary": "{lone}", "summary": "y"')
    found = read(raw)
    assert [tool.definition.name for tool in found.tools] == ["a"]
    assert [(one.path, one.reason) for one in found.refused] == [
        ("/b", 'The key "summary" occurs twice in one object.')
    ]


def test_a_component_that_stands_twice_refuses_who_refers_to_it():
    """C1.4."""
    raw = json.dumps(
        document(
            {
                "/a": {"get": {"operationId": "a", "parameters": [{"$ref": "#/components/parameters/A"}]}},
                "/b": {"get": {"operationId": "b", "parameters": [{"$ref": "#/components/parameters/B"}]}},
            },
            components={"parameters": {name: {"name": "q", "in": "query"} for name in ("A", "A2", "B")}},
        )
    ).replace('"A2"', '"A"')
    found = read(raw)
    assert [tool.definition.name for tool in found.tools] == ["b"]
    assert [one.reason for one in found.refused] == ['The key "A" occurs twice in one object.']


@pytest.mark.parametrize(
    ("text", "names", "refused"),
    [
        ('"/a": {"get": {}}, "/a": {"put": {}}, "/b": {"get": {}}', ["get_b"], 2),
        ('"/a": {"get": {}, "get": {"tags": []}, "put": {}}', ["put_a"], 1),
    ],
)
def test_paths_and_methods_that_stand_twice_are_refused(text, names, refused):
    """C1.4."""
    found = read(json.dumps(document({})).replace('"paths": {}', f'"paths": {{{text}}}'))
    assert [tool.definition.name for tool in found.tools] == names
    assert len(found.refused) == refused and all("twice" in one.reason for one in found.refused)


def test_what_lies_outside_of_the_document_is_never_fetched():
    """C1.4: the operation is refused with the reference."""
    for reference in ("http://169.254.169.254/latest", "file:///etc/passwd", "./orders.yaml#/Order"):
        raw = with_operation({"parameters": [{"$ref": reference}]})
        told = the_refusal(raw)
        assert f'"{reference}" outside the document' in told.reason and told.pointer.endswith("/$ref")


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("#anchor", "by an $anchor"),
        ("#/paths/~1orders/get/parameters/0", "chain of references is too long"),
        (5, "must be a string"),
    ],
)
def test_references_that_lead_nowhere_refuse_their_operation(reference, told):
    """C1.4."""
    assert told in the_refusal(with_operation({"parameters": [{"$ref": reference}]})).reason


PATH_ITEMS = {
    "P": {
        "parameters": [{"name": "X-Tenant", "in": "header"}, {"name": "q", "in": "query"}],
        "get": {"operationId": "get"},
        "put": {"operationId": "put"},
    },
    "Q": {"$ref": "#/components/pathItems/P", "patch": {"operationId": "patch"}},
    "R": {"$ref": "#/components/pathItems/Q", "parameters": [{"name": "r", "in": "query"}]},
    "Loop": {"$ref": "#/components/pathItems/Loop", "get": {}},
}


@pytest.mark.parametrize(
    ("item", "tools"),
    [
        ("P", {"get": ["X-Tenant", "q"], "put": ["X-Tenant", "q"]}),
        ("Q", {"patch": ["X-Tenant", "q"], "get": ["X-Tenant", "q"], "put": ["X-Tenant", "q"]}),
        ("R", {name: ["X-Tenant", "q", "r"] for name in ("patch", "get", "put")}),
        (
            {"$ref": "#/components/pathItems/P", "delete": {"operationId": "delete"}},
            {name: ["X-Tenant", "q"] for name in ("delete", "get", "put")},
        ),
        (
            {"$ref": "#/components/pathItems/P", "get": {"operationId": "mine"}},
            {name: ["X-Tenant", "q"] for name in ("mine", "put")},
        ),
        (
            {"$ref": "#/paths/~1b", "parameters": [{"name": "q", "in": "query", "required": True}]},
            {"post": ["q"]},
        ),
    ],
)
@pytest.mark.parametrize("openapi", ["3.0.3", "3.1.0"])
def test_a_path_that_refers_to_another_has_the_operations_and_parameters_of_both(item, tools, openapi):
    """C1.4: what stands beside the reference comes first."""
    item = {"$ref": f"#/components/pathItems/{item}"} if isinstance(item, str) else item
    paths = {"/a": item, "/b": {"post": {"operationId": "post"}}}
    raw = document(paths, components={"pathItems": PATH_ITEMS}, openapi=openapi)
    read_tools = [tool for tool in read(raw).tools if tool.operation.path == "/a"]
    # The second of two operations with one id is named by its path as well.
    names = [tool.operation.id for tool in read_tools]
    assert names == [*tools]
    assert [[*tool.definition.input_schema["properties"]] for tool in read_tools] == [*tools.values()]
    assert all(not tool.notes for tool in read_tools)


def test_a_path_that_refers_to_itself_or_to_nothing_is_refused():
    """C1.4: in bounded time."""
    for target, told in (("Loop", "chain of references is too long"), ("None", "does not exist")):
        raw = document(
            {"/a": {"$ref": f"#/components/pathItems/{target}", "post": {}}},
            components={"pathItems": PATH_ITEMS},
        )
        refused = the_refusal(raw)
        assert told in refused.reason and refused.method == "*"


def test_a_description_beside_a_reference_replaces_its_targets():
    """C1.4: of parameters and bodies; other uses of the target keep theirs."""
    body = {"description": "Theirs.", "content": {"application/json": {"schema": {"type": "array"}}}}
    parameter = {"name": "q", "in": "query", "description": "Theirs."}
    references = {kind: {"$ref": f"#/components/{kind}/A"} for kind in ("parameters", "requestBodies")}
    mine = {"description": "Mine.", "summary": "S"}
    paths = {
        f"/{name}": {
            "post": {
                "parameters": [references["parameters"] | beside],
                "requestBody": references["requestBodies"] | beside,
            }
        }
        for name, beside in (("a", {}), ("b", mine), ("c", {}))
    }
    raw = document(paths, components={"parameters": {"A": parameter}, "requestBodies": {"A": body}})
    told = [
        {name: schema["description"] for name, schema in tool.definition.input_schema["properties"].items()}
        for tool in read(raw).tools
    ]
    assert told == [{"q": word, "body": word} for word in ("Theirs.", "Mine.", "Theirs.")]
