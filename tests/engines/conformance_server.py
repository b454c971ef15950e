"""An MCP server with the tools that the official conformance suite calls, as far as their answers hold more
than JSON: `python -m tests.engines.conformance_server PORT`.

Names and what a result has to contain are the suite's; it says so in each scenario's description.
"""

import asyncio
import base64
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
WAV = base64.b64encode(
    b"RIFF\x26\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00"
    b"\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00data\x02\x00\x00\x00\x00\x00"
).decode()
STEP_SECONDS = 1.2
"""Longer than the product takes between two records of progress."""

server = MCPServer("conformance")


@server.tool(structured_output=False)
def test_simple_text() -> str:
    """Answers with one sentence."""
    return "This is a simple text response for testing."


@server.tool(structured_output=False)
def test_image_content() -> ImageContent:
    """Answers with a picture."""
    return ImageContent(data=PNG, mime_type="image/png")


@server.tool(structured_output=False)
def test_audio_content() -> AudioContent:
    """Answers with a sound."""
    return AudioContent(data=WAV, mime_type="audio/wav")


@server.tool(structured_output=False)
def test_embedded_resource() -> EmbeddedResource:
    """Answers with a resource."""
    return _resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")


@server.tool(structured_output=False)
def test_multiple_content_types() -> list[ContentBlock]:
    """Answers with a text, a picture and a resource."""
    return [
        TextContent(text="Multiple content types test:"),
        ImageContent(data=PNG, mime_type="image/png"),
        _resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ]


@server.tool(structured_output=False)
def test_error_handling() -> CallToolResult:
    """Always fails."""
    text = TextContent(text="This tool intentionally returns an error for testing")
    return CallToolResult(content=[text], is_error=True)


@server.tool(structured_output=False)
async def test_tool_with_progress(context: Context) -> str:
    """Tells its progress three times."""
    for percent in (0, 50, 100):
        await context.report_progress(percent, 100, f"{percent} of 100")
        await asyncio.sleep(STEP_SECONDS)
    return "Done."


def _resource(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))


@server.custom_route("/healthz", methods=["GET"])
async def healthz(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


if __name__ == "__main__":
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
