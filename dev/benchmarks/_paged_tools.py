"""An MCP server, made with the SDK, with 1,000 tools in pages: PORT. `/edition/N` describes them all anew."""

import sys
from typing import Any

import uvicorn
from mcp.server.lowlevel import Server
from mcp_types import ListToolsResult, PaginatedRequestParams, Tool
from starlette.requests import Request
from starlette.responses import PlainTextResponse

COUNT, PAGE = 1_000, 100


def tool(number: int, edition: int) -> Tool:
    """As large as a typical one: eight parameters, an output schema, annotations, a paragraph."""
    parameters = {
        f"field_{index}": {
            "type": "string",
            "description": f"Field {index} of order {number}.",
            "maxLength": 200,
        }
        for index in range(8)
    }
    return Tool.model_validate(
        {
            "name": f"close_books_{number}",
            "title": f"Close the books of unit {number}",
            "description": f"Edition {edition}. Collects the postings of unit {number} and reports. " * 3,
            "inputSchema": {"type": "object", "properties": parameters, "required": ["field_0", "field_1"]},
            "outputSchema": {"type": "object", "properties": {"report": {"type": "string"}}},
            "annotations": {"readOnlyHint": False, "idempotentHint": True},
        }
    )


class Listing:
    def __init__(self) -> None:
        self.describe(1)

    def describe(self, edition: int) -> None:
        self._tools = [tool(number, edition) for number in range(COUNT)]

    async def page(self, _: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        begin = int((params and params.cursor) or 0)
        following = str(begin + PAGE) if begin + PAGE < COUNT else None
        return ListToolsResult(tools=self._tools[begin : begin + PAGE], next_cursor=following)


def application(listing: Listing) -> Any:
    async def ready(_: Request) -> PlainTextResponse:
        return PlainTextResponse("ready")

    async def edition(request: Request) -> PlainTextResponse:
        listing.describe(request.path_params["number"])
        return PlainTextResponse("described")

    served = Server("paged-tools", version="1", on_list_tools=listing.page).streamable_http_app()
    served.add_route("/ready", ready)
    served.add_route("/edition/{number:int}", edition)
    return served


if __name__ == "__main__":
    uvicorn.run(
        application(Listing()),
        port=int(sys.argv[1]),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
    )
