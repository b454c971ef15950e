"""An MCP server with the tools that the official conformance suite calls, as far as their answers hold more
than JSON, and with the prompts and resources that it reads.

`python -m tests.engines.conformance_server PORT`.

Names and what a result has to contain are the suite's; it says so in each scenario's description.
"""

import asyncio
import base64
import json
import sys
import warnings
from typing import Any

import uvicorn
from mcp import MCPDeprecationWarning, MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    TextContent,
    TextResourceContents,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.engines.mcp_server import Guard

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
WAV = base64.b64encode(
    b"RIFF\x26\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00"
    b"\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00data\x02\x00\x00\x00\x00\x00"
).decode()
STEP_SECONDS = 1.2
"""Longer than the product takes between two records of progress."""
PAUSE_SECONDS = 0.05

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


@server.tool(structured_output=False)
async def test_tool_with_logging(context: Context) -> str:
    """Logs three times."""
    for words in ("execution started", "processing data", "execution completed"):
        await _log(context, f"Tool {words}")
        await asyncio.sleep(PAUSE_SECONDS)
    return "Done."


@server.tool(structured_output=False)
async def test_logging_tool(context: Context) -> str:
    """Logs once."""
    await _log(context, "Here")
    return "Done."


async def _log(context: Context, words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        await context.info(words)


def _question(message: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def _sample(prompt: str) -> dict[str, Any]:
    said = {"role": "user", "content": {"type": "text", "text": prompt}}
    return {"method": "sampling/createMessage", "params": {"messages": [said], "maxTokens": 100}}


ROOTS = {"method": "roots/list", "params": {}}
TEXT, FLAG = {"type": "string"}, {"type": "boolean"}
DEFAULTS = {
    "name": TEXT | {"default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": TEXT | {"enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": FLAG | {"default": True},
}
ENUMS = {
    "untitledSingle": TEXT | {"enum": ["option1", "option2", "option3"]},
    "titledSingle": TEXT
    | {
        "oneOf": [
            {"const": f"value{n}", "title": f"{nth} Option"} for n, nth in enumerate(("First", "Second"), 1)
        ]
    },
    "legacyEnum": TEXT
    | {"enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]},
    "untitledMulti": {"type": "array", "items": TEXT | {"enum": ["option1", "option2", "option3"]}},
    "titledMulti": {
        "type": "array",
        "items": {"anyOf": [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2)]},
    },
}
Answer = CallToolResult | InputRequiredResult


def _ask(context: Context, *rounds: dict[str, dict[str, Any]]) -> Answer:
    """Asks one round after the other, and then answers with all that was said, which the state holds."""
    said = json.loads(context.request_state or "[]")
    if context.input_responses:
        answers = {key: one.model_dump(mode="json") for key, one in context.input_responses.items()}
        said.append(answers)
    if len(said) == len(rounds):
        return CallToolResult(content=[TextContent(text=f"Input completed, state-ok: {json.dumps(said)}")])
    asked = {"inputRequests": rounds[len(said)], "requestState": json.dumps(said)}
    return InputRequiredResult.model_validate(asked)


@server.tool(structured_output=False)
def test_elicitation(message: str, context: Context) -> Answer:
    """Asks its user."""
    return _ask(context, {"user": _question(message, username=TEXT, email=TEXT)})


@server.tool(structured_output=False)
def test_sampling(prompt: str, context: Context) -> Answer:
    """Asks a model."""
    return _ask(context, {"model": _sample(prompt)})


@server.tool(structured_output=False)
def test_elicitation_sep1034_defaults(context: Context) -> Answer:
    """Asks with a default for each field."""
    return _ask(context, {"user": _question("Please check", **DEFAULTS)})


@server.tool(structured_output=False)
def test_elicitation_sep1330_enums(context: Context) -> Answer:
    """Asks for choices of each kind."""
    return _ask(context, {"user": _question("Please choose", **ENUMS)})


@server.tool(structured_output=False)
def test_input_required_result_elicitation(context: Context) -> Answer:
    """Asks its user."""
    return _ask(context, {"user_name": _question("What is your name?", name=TEXT)})


@server.tool(structured_output=False)
def test_input_required_result_sampling(context: Context) -> Answer:
    """Asks a model."""
    return _ask(context, {"capital_question": _sample("What is the capital of France?")})


@server.tool(structured_output=False)
def test_input_required_result_list_roots(context: Context) -> Answer:
    """Asks for folders."""
    return _ask(context, {"client_roots": ROOTS})


@server.tool(structured_output=False)
def test_input_required_result_request_state(context: Context) -> Answer:
    """Asks, with a state."""
    return _ask(context, {"confirm": _question("Please confirm", ok=FLAG)})


@server.tool(structured_output=False)
def test_input_required_result_tampered_state(context: Context) -> Answer:
    """Asks, with a state that the product makes its own of."""
    return _ask(context, {"confirm": _question("Please confirm", ok=FLAG)})


@server.tool(structured_output=False)
def test_input_required_result_multiple_inputs(context: Context) -> Answer:
    """Asks for three things at once."""
    name = _question("What is your name?", name=TEXT)
    return _ask(
        context, {"user_name": name, "greeting": _sample("Generate a greeting"), "client_roots": ROOTS}
    )


@server.tool(structured_output=False)
def test_input_required_result_multi_round(context: Context) -> Answer:
    """Asks twice."""
    colour = _question("Step 2: What is your favorite color?", color=TEXT)
    return _ask(context, {"step1": _question("Step 1: What is your name?", name=TEXT)}, {"step2": colour})


@server.tool(structured_output=False)
def test_input_required_result_capabilities(context: Context) -> Answer:
    """Asks only for what the client says it can answer."""
    capabilities = context.client_capabilities
    asked = {}
    if capabilities is not None and capabilities.sampling is not None:
        asked["model"] = _sample("Say something.")
    if capabilities is not None and capabilities.elicitation is not None:
        asked["user"] = _question("Who are you?", name=TEXT)
    return _ask(context, asked)


@server.tool(structured_output=False)
def test_missing_capability(context: Context) -> str:
    """Needs a client with a model."""
    capabilities = context.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        needed = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling.", data=needed)
    return "The client has it."


@server.tool(structured_output=False)
def confirm_delete(filename: str, context: Context) -> Answer:
    """Asks before it does anything."""
    return _ask(context, {"confirm": _question(f"Really delete {filename}?", confirm=FLAG)})


@server.tool(structured_output=False)
def multi_input(context: Context) -> Answer:
    """Asks two questions at once."""
    return _ask(
        context, {"first": _question("The first?", a=TEXT), "second": _question("The second?", b=TEXT)}
    )


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> UserMessage:  # noqa: N803 - the suite's name
    """Has a resource in its message."""
    return UserMessage(_resource(resourceUri, "text/plain", "Embedded resource content for testing."))


@server.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    """Has a picture in its message."""
    picture = ImageContent(data=PNG, mime_type="image/png")
    return [UserMessage(picture), UserMessage("Please analyze the image above.")]


@server.prompt()
def test_input_required_result_prompt(context: Context) -> list[UserMessage] | InputRequiredResult:
    """Asks its user before it answers."""
    if context.input_responses:
        (answer,) = context.input_responses.values()
        return [UserMessage(f"Use this context: {answer.model_dump_json()}")]
    question = _question("What context should the prompt use?", context=TEXT)
    return InputRequiredResult.model_validate({"inputRequests": {"user_context": question}})


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """A picture."""
    return base64.b64decode(PNG)


@server.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> str:
    """Data by its id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def _resource(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))


@server.custom_route("/healthz", methods=["GET"])
async def healthz(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


if __name__ == "__main__":
    # Its tools ask in their results, which clients with a handshake do not read.
    guarded = Guard(server.streamable_http_app(), path="/mcp", token="", era="2026")
    uvicorn.run(guarded, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
