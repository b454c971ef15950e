"""A server's prompts, resources and resource templates: listing and reading them."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from pydantic import ValidationError

from connectors.definitions import (
    ADDRESS,
    LONGEST_ADDRESS,
    TOO_DEEP,
    FeatureDefinition,
    FeatureKind,
    RejectedDefinition,
    address_problem,
    explain,
    not_an_object,
    readable,
    runs_as_script,
)
from connectors.errors import InvalidAnswer, NotFound, Rejected, Unsupported
from connectors.formats.json import as_object
from connectors.protocol import Completion, GivenInput, RunCaller
from connectors.simplified import walk_listing
from connectors.upstream_mcp.messages import CUT
from connectors.upstream_mcp.run_callers import Questions
from connectors.upstream_mcp.session import McpSession

MOST_LISTED = 1_000  # Of each kind
LISTS = {  # The capability, the method, the key of its answer, and that of an entry's identifier
    FeatureKind.PROMPT: ("prompts", "prompts/list", "prompts", "name"),
    FeatureKind.RESOURCE: ("resources", "resources/list", "resources", "uri"),
    FeatureKind.TEMPLATE: ("resources", "resources/templates/list", "resourceTemplates", "uriTemplate"),
}
RESOURCE_NOT_FOUND = -32002  # Of handshake versions; later ones use -32602


class ServerFeatures:
    """The part of a connector that lists and reads what its server has besides tools."""

    _session: McpSession
    _questions: Questions

    async def list_features(self) -> AsyncGenerator[FeatureDefinition | RejectedDefinition]:
        """The first MOST_LISTED of each kind; a rejected entry reports that there are more."""
        capabilities = (await self._session.era()).capabilities
        for kind in LISTS:
            if LISTS[kind][0] in capabilities:
                # A server with resources need not know of templates.
                with suppress(Unsupported):
                    async for item in self._list_kind(kind):
                        yield item

    async def _list_kind(self, kind: FeatureKind) -> AsyncGenerator[FeatureDefinition | RejectedDefinition]:
        _, method, key, _ = LISTS[kind]
        listed = walk_listing(
            lambda page, _: self._session.page(method, key, page),
            listing=f"The server's answer to {method}",
            of=key,
        )
        async with aclosing(listed):
            async for position, raw in listed:
                if position == MOST_LISTED:
                    reason = f"{method} has more than {MOST_LISTED:,} entries; the others are left out"
                    yield RejectedDefinition(position=position, id="", name="", reason=reason)
                    return
                yield _parse(raw, kind, position=position)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str], *, given: GivenInput | None = None
    ) -> dict[str, Any]:
        params = {"name": name, "arguments": dict(arguments)}
        return await self._read("prompts/get", params, name=name, given=given)

    async def read_resource(self, uri: str, *, given: GivenInput | None = None) -> dict[str, Any]:
        try:
            return await self._read("resources/read", {"uri": uri}, name=uri, given=given)
        except Rejected as error:
            if error.details.get("code") == RESOURCE_NOT_FOUND:
                raise NotFound(error.message, details=error.details) from None
            raise

    async def complete(
        self, kind: FeatureKind, identifier: str, argument: str, typed: str, given: Mapping[str, str]
    ) -> Completion:
        """Empty if the server does not support completion."""
        if "completions" not in (await self._session.era()).capabilities:
            return Completion()
        reference = {"type": "ref/resource", "uri": identifier}
        if kind is FeatureKind.PROMPT:
            reference = {"type": "ref/prompt", "name": identifier}
        params: dict[str, Any] = {"ref": reference, "argument": {"name": argument, "value": typed}}
        if given:
            params["context"] = {"arguments": dict(given)}
        answer = await self._session.request("completion/complete", params)
        found = as_object(answer.get("completion"))
        values, total = found.get("values"), found.get("total")
        if not isinstance(values, list):
            raise InvalidAnswer("The server's answer to completion/complete has no array of values.")
        return Completion(
            values=[value for value in values if isinstance(value, str)],
            total=total if isinstance(total, int) and total >= 0 else None,
            has_more=found.get("hasMore") is True,
        )

    async def _read(
        self, method: str, params: dict[str, Any], *, name: str, given: GivenInput | None
    ) -> dict[str, Any]:
        """A server of the handshake era asks during the request, and learns that no user saw the question."""
        caller = None
        if given is not None and (await self._session.era()).is_modern:
            caller = RunCaller(capabilities=given.capabilities, ask=_refuse_all, key=given.caller)
            params |= {"inputResponses": dict(given.responses)} if given.responses else {}
            params |= {"requestState": given.state} if given.state is not None else {}
        try:
            answer = await self._session.request(method, params, name=name, caller=caller)
        except Rejected as error:
            if not (asked := self._questions.pages_to_open(error, given)):
                raise
            answer = {}
        else:
            kind = answer.get("resultType", "complete")
            if kind == "complete":
                return answer
            if kind != "input_required" or caller is None:
                reason = f"The server asks for input before it answers {method}"
                raise Unsupported(f"{reason}, which this client cannot provide.")
            asked = self._questions.admissible(answer.get("inputRequests") or {}, caller)
        state = answer.get("requestState") if isinstance(answer.get("requestState"), str) else None
        return {"resultType": "input_required", "inputRequests": asked, "requestState": state}


async def _refuse_all(requests: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A stateless server asks in its answer, never by requests during the call."""
    return {key: {"error": {}} for key in requests}


def _parse(raw: Any, kind: FeatureKind, *, position: int) -> FeatureDefinition | RejectedDefinition:
    """One entry of a server's list. Optional fields that are null count as absent."""
    if not isinstance(raw, dict):
        return not_an_object(raw, position=position)
    given = {key: value for key, value in raw.items() if value is not None}
    identifier, name = given.get(LISTS[kind][3]), given.get("name")
    if CUT in raw:
        reason = TOO_DEEP
    else:
        known = ("name", "title", "description") + (("arguments",) if kind is FeatureKind.PROMPT else ())
        fields = {key: given[key] for key in known if key in given}
        fields |= {"kind": kind, "id": identifier, "mime_type": given.get("mimeType", "")}
        fields |= {"icons": given.get("icons"), "size": given.get("size")}
        try:
            definition = FeatureDefinition.model_validate(fields)
        except ValidationError as error:
            reason = explain(error)
        else:
            reason = problem_of(definition)
            if not reason:
                return definition
    return RejectedDefinition(
        position=position, id=readable(identifier), name=readable(name), reason=f"{kind}: {reason}"
    )


def problem_of(definition: FeatureDefinition) -> str:
    """Why it cannot be served; empty if it can."""
    texts = [definition.id, *(argument.name for argument in definition.arguments)]
    if not all(text.isprintable() for text in texts):
        return "its name, its address or an argument's name has unprintable characters"
    names = [argument.name for argument in definition.arguments]
    if len(set(names)) < len(names):
        return "two of its arguments have the same name"
    match definition.kind:
        case FeatureKind.RESOURCE:
            return address_problem(definition.id)
        case FeatureKind.TEMPLATE:
            return _template_problem(definition.id)
    return ""


def _template_problem(template: str) -> str:
    # A template that begins with a variable would match the addresses of everything else.
    if not ADDRESS.fullmatch(template):
        return "its template does not begin with a scheme, or has characters that a URI cannot have"
    try:
        parsed = UriTemplate.parse(template, max_length=LONGEST_ADDRESS)
    except InvalidUriTemplate as error:
        return f"its template cannot be used: {error}"[:1000]
    if runs_as_script(template):
        return "its addresses are scripts"
    return "" if parsed.variable_names else "its template has no variable"
