"""An MCP server of one era, made with the SDK, whose tools ask their caller before they answer.

`python -m tests.engines.asking_server --port N --era 2025|2026`. Tools answer with what they heard, as JSON.
"""

import argparse
import json
from typing import Any

import uvicorn
from mcp.server.lowlevel import Server
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    ElicitRequest,
    ElicitResult,
    GetPromptResult,
    InputRequiredResult,
    ListPromptsResult,
    ListResourcesResult,
    ListRootsRequest,
    ListRootsResult,
    ListToolsResult,
    Prompt,
    PromptMessage,
    ReadResourceResult,
    Resource,
    TextContent,
    TextResourceContents,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tests.engines.mcp_server import Guard

SECRET_STATE = "known to the server alone"
SEAT = {"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]}
FORM = {"mode": "form", "message": "Which seat?", "requestedSchema": SEAT}
MEAL = FORM | {"message": "Which meal?"}
PAGE = {"mode": "url", "message": "Pay here.", "url": "https://pay.example/7", "elicitationId": "7"}
TURNED = "\u202e!ereh yaP \u200b"
ODD_SEAT = {
    "type": "object",
    "properties": {
        "seat": {"type": "string", "title": TURNED, "enum": [TURNED, "1A"], "description": TURNED}
    },
}
ODD = {"mode": "form", "message": TURNED, "requestedSchema": ODD_SEAT}
ASKED = {"book": [FORM], "dine": [FORM, MEAL], "pay": [PAGE], "mislead": [ODD]}
NO_PAGES = (
    "javascript:alert(1)",
    " javascript:alert(1)",
    "java\tscript:alert(1)",
    "data:text/html,x",
    "file:///etc/passwd",
    "ftp://pay.example",
    "https:///7",
    "https://",
    "https:pay.example",
    "//pay.example",
    "https://bank.example@evil.example/",
    "https://pay.example/\u202e",
    "https://pay.example/\n",
    "https://p\u0430y.example/",
    "https://[bad/",
    "HTTPS",
    "",
)
ASKED |= {f"lure_{number}": [PAGE | {"url": url}] for number, url in enumerate(NO_PAGES)}


class AskingServer:
    """An MCP server of either era, made with the SDK."""

    def __init__(self) -> None:
        self.server: Server[Any] = Server(
            "asking", version="1", on_list_tools=self.list_tools, on_call_tool=self.call_tool,
            on_list_prompts=self.list_prompts, on_get_prompt=self.get_prompt,
            on_list_resources=self.list_resources, on_read_resource=self.read_resource,
            get_tool_input_schema=lambda name: {},
        )  # fmt: skip
        self.calls: list[str] = []

    async def list_tools(self, ctx: Any, params: Any) -> ListToolsResult:
        names = [*ASKED, "look_around"]
        return ListToolsResult(
            tools=[Tool(name=one, description="Asks.", input_schema={"type": "object"}) for one in names]
        )

    async def call_tool(self, ctx: Any, params: Any) -> Any:
        self.calls.append(params.name)
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return self.answer_or_ask(params)
        if params.name == "look_around":
            roots = await ctx.session.send_request(ListRootsRequest(), ListRootsResult)
            return text(str(roots.roots[0].uri))
        said = [await self.elicit(ctx, one) for one in ASKED[params.name]]
        return text(json.dumps(said))

    async def list_prompts(self, ctx: Any, params: Any) -> ListPromptsResult:
        return ListPromptsResult(prompts=[Prompt(name="plan_a_trip", description="Asks.")])

    async def list_resources(self, ctx: Any, params: Any) -> ListResourcesResult:
        return ListResourcesResult(resources=[Resource(uri="seat://mine", name="mine")])

    async def get_prompt(self, ctx: Any, params: Any) -> Any:
        said = await self.ask_for_seat(ctx, params)
        if isinstance(said, InputRequiredResult):
            return said
        return GetPromptResult(messages=[PromptMessage(role="user", content=TextContent(text=said))])

    async def read_resource(self, ctx: Any, params: Any) -> Any:
        said = await self.ask_for_seat(ctx, params)
        if isinstance(said, InputRequiredResult):
            return said
        return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, text=said)])

    async def ask_for_seat(self, ctx: Any, params: Any) -> str | InputRequiredResult:
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return json.dumps(await self.elicit(ctx, FORM))
        if not params.input_responses:
            return ask({"method": "elicitation/create", "params": FORM}, [SECRET_STATE])
        assert json.loads(params.request_state) == [SECRET_STATE]
        (result,) = params.input_responses.values()
        return json.dumps([result.action, result.content])

    async def elicit(self, ctx: Any, question: dict[str, Any]) -> Any:
        request = ElicitRequest.model_validate({"params": question})
        related = ServerMessageMetadata(related_request_id=ctx.request_id)
        result = await ctx.session.send_request(request, ElicitResult, metadata=related)
        return [result.action, result.content]

    def answer_or_ask(self, params: Any) -> Any:
        """Without a session, all that was said comes back in the state."""
        said = json.loads(params.request_state or "[]")
        for result in (params.input_responses or {}).values():
            said.append(
                [result.action, result.content]
                if isinstance(result, ElicitResult)
                else str(result.roots[0].uri)
            )
        if params.name == "look_around":
            return text(said[0]) if said else ask({"method": "roots/list"}, said)
        if len(said) == len(ASKED[params.name]):
            return text(json.dumps(said))
        return ask({"method": "elicitation/create", "params": ASKED[params.name][len(said)]}, said)


def ask(request: dict[str, Any], said: list[Any]) -> InputRequiredResult:
    wanted = {"inputRequests": {"question": request}, "requestState": json.dumps(said)}
    return InputRequiredResult.model_validate(wanted)


def text(words: str) -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": words}]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--era", required=True)
    options = parser.parse_args()
    application = AskingServer().server.streamable_http_app()
    guarded = Guard(application, path="/mcp", token="", era=options.era)
    uvicorn.run(
        guarded, host="127.0.0.1", port=options.port, log_level="warning", timeout_graceful_shutdown=1
    )


if __name__ == "__main__":
    main()
