"""An MCP server of one era, made with the SDK, with prompts, resources and templates beside a tool.

`python -m tests.engines.library_server --port N --era 2025|2026`.
"""

import argparse

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    Icon,
    ImageContent,
    PromptReference,
    ResourceTemplateReference,
)

from tests.engines.mcp_server import Guard

PNG = "iVBORw0KGgo="
BOOKS = {"1": "Moby-Dick", "2": "Middlemarch", "a b": "With a space"}
LARGE = 200_000

ICON = Icon(src="https://library.example.com/a.png", mime_type="image/png", sizes=["48x48"])

server = MCPServer("library", version="1")


@server.tool()
def lend(book: str) -> str:
    """Lends a book."""
    return f"Lent: {book}"


@server.prompt(title="Summarise a book", icons=[ICON])
def summarise(book: str, style: str = "short") -> list[UserMessage]:
    """Asks for a summary."""
    picture = ImageContent(data=PNG, mime_type="image/png")
    return [UserMessage(f"Summarise {book}, {style}."), UserMessage(picture)]


@server.prompt()
def burn() -> str:
    """Always fails."""
    raise ValueError("The library is closed.")


@server.resource("library://rules", title="House rules", mime_type="text/plain", icons=[ICON])
def rules() -> str:
    """What readers may do."""
    return "No shouting."


@server.resource("library://cover.png", mime_type="image/png")
def cover() -> bytes:
    return b"\x89PNG"


@server.resource("library://archive", mime_type="text/plain")
def archive() -> str:
    return "x" * LARGE


@server.resource("library://books/{number}", title="A book", mime_type="text/plain", icons=[ICON])
def book(number: str) -> str:
    """One book by its number."""
    return BOOKS[number]


@server.completion()
async def complete(
    reference: PromptReference | ResourceTemplateReference,
    argument: CompletionArgument,
    context: CompletionContext | None,
) -> Completion | None:
    given = (context and context.arguments) or {}
    if argument.name == "style":
        styles = [f"short on {given['book']}"] if "book" in given else ["short", "long"]
        return Completion(values=[one for one in styles if one.startswith(argument.value)])
    return Completion(values=[one for one in BOOKS if one.startswith(argument.value)], has_more=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--era", required=True)
    options = parser.parse_args()
    guarded = Guard(server.streamable_http_app(), path="/mcp", token="", era=options.era)
    uvicorn.run(
        guarded, host="127.0.0.1", port=options.port, log_level="warning", timeout_graceful_shutdown=1
    )


if __name__ == "__main__":
    main()
