"""XML bodies of imported operations, whose form only the description tells."""

from typing import Any
from xml.etree import ElementTree

import pytest

from connectors.http_tools.connector import HttpConfig, HttpConnector
from connectors.protocol import WorkflowRef
from tests.connectors.calling import call
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.connectors.openapi import body_of, the_tool, with_operation
from tests.engines.target_api import running_target_api

TEXT = {"type": "string"}
SHOP = "https://shop.example.com/orders"
ORDER: dict[str, Any] = {
    "type": "object",
    "xml": {"name": "Order", "namespace": SHOP, "prefix": "o"},
    "properties": {
        "id": {"type": "integer", "xml": {"attribute": True, "name": "number"}},
        "made": {"type": "string", "readOnly": True},
        "state": {"enum": ["open", "a&b"], "xml": {"prefix": "o"}},
        "lines": {
            "type": "array",
            "xml": {"wrapped": True, "name": "Lines"},
            "items": {"$ref": "#/components/schemas/Line"},
        },
        "tags": {"type": "array", "items": {**TEXT, "xml": {"name": "Tag"}}},
    },
}
LINE = {
    "allOf": [{"properties": {"sku": TEXT}}, {"properties": {"parts": {"$ref": "#/components/schemas/Line"}}}]
}
NESTED = {"type": "array", "items": {"$ref": "#/components/schemas/Nested"}}
COMPONENTS = {"schemas": {"Order": ORDER, "Line": LINE | {"xml": {"name": "Line"}}, "Nested": NESTED}}
DELETE = {"type": "array", "xml": {"name": "Delete", "wrapped": True}, "items": {"properties": {"Key": TEXT}}}
OUTLINE = (
    f'<o:Order xmlns:o="{SHOP}" number="integer"><o:state>open|a&amp;b</o:state>'
    "<Lines><Line><sku>string</sku><Line>...</Line></Line>...</Lines><Tag>string</Tag>...</o:Order>"
)


def described(schema: Any, *, media_type: str = "application/xml", **media: Any) -> str:
    content = {media_type: {"schema": schema} | media}
    raw = with_operation({"requestBody": {"content": content}}, method="post", components=COMPONENTS)
    return str(the_tool(raw).definition.input_schema["properties"]["body"]["description"])


async def test_what_is_written_by_the_outline_arrives_as_the_document_has_it():
    """C1.4: names, attributes, lists and namespaces, by the document's `xml` hints."""
    raw = with_operation(
        body_of({"$ref": "#/components/schemas/Order"}, media_type="application/xml"),
        method="post",
        path="/echo",
        components=COMPONENTS,
    )
    with running_target_api() as api, http_tool_hosts("127.0.0.1"):
        tool = the_tool(raw, base_url=api.base_url)
        description = tool.definition.input_schema["properties"]["body"]["description"]
        assert description.endswith(f"Its form: {OUTLINE}")
        body = OUTLINE.replace("integer", "7").replace("open|a&amp;b", "a&amp;b").replace("...", "")
        workflow = WorkflowRef(id="op", name="op", metadata=tool.definition.metadata)
        await call(HttpConnector(HttpConfig(base_url=api.base_url)), workflow, {"body": body})
        assert dict(api.last.headers)["content-type"] == "application/xml"
        order = ElementTree.fromstring(api.last.body)
    assert (order.tag, order.attrib) == (f"{{{SHOP}}}Order", {"number": "7"})
    assert [one.tag for one in order] == [f"{{{SHOP}}}state", "Lines", "Tag"]
    assert order.findtext(f"{{{SHOP}}}state") == "a&b" and order.find("Lines/Line/sku") is not None


@pytest.mark.parametrize(
    ("schema", "media", "outline"),
    [
        (ORDER, {"example": ' <Order number="7"/>'}, '<Order number="7"/>'),
        (DELETE, {}, "<Delete><Delete><Key>string</Key></Delete>...</Delete>"),
        ({"$ref": "#/components/schemas/Line"}, {}, "<Line><sku>string</sku><Line>...</Line></Line>"),
    ],
)
def test_the_form_is_the_documents_example_or_its_elements(schema, media, outline):
    """C1.4."""
    assert described(schema, **media).endswith(f"Its form: {outline}")


@pytest.mark.parametrize(
    "schema", [TEXT, {}, True, {"$ref": "#/nowhere"}, {"properties": 7}, {"allOf": {"a": 1}}]
)
def test_without_elements_the_description_has_no_form(schema):
    """C1.4: nor do broken schemas refuse a body that is text."""
    assert "Its form" not in described(schema)
    assert "Its form" not in described(ORDER, media_type="text/plain")


def test_a_form_is_bounded_however_large_its_schema_is():
    """P9: agents pay for it, and lists may be their own items."""
    wide = {"properties": {f"field{number}": {"$ref": "#/components/schemas/Order"} for number in range(500)}}
    assert len(described(wide)) < 2_000
    nested = {"properties": {"a": {"$ref": "#/components/schemas/Nested"}}}
    assert described(nested).endswith("<a>...</a>...</body>")
