"""What becomes of an API's answer, a real one on loopback."""

import asyncio
import base64
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest

from connectors.errors import OutcomeUnknown, Unreachable
from connectors.http_tools.tool import HTTPRequestSpec, HTTPResponseSpec
from connectors.protocol import ABOUT_OUTPUT, ASIDE, RunSnapshot, RunState
from tests.connectors.calling import run
from tests.connectors.declared_tools import TEXT, tool
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.engines.target_answers import PNG
from tests.engines.target_api import Reply, TargetApi, running_target_api

SECRET = "api-key-0123456789abcdef"


@pytest.fixture
def api() -> Iterator[TargetApi]:
    with running_target_api() as api, http_tool_hosts("127.0.0.1"):
        yield api


async def test_the_record_of_a_call_has_the_request_and_the_response_without_credentials(api):
    """C5.2, C5.4, C9: status, headers, body and time of the one, and the other as it was made."""
    api.tell(
        "POST",
        "/orders",
        Reply(201, {"id": 7, "key": SECRET}, {"Set-Cookie": "session=abc", "X-Echo": SECRET}),
    )
    declared = tool(
        "POST",
        f"{api.base_url}/orders",
        {"note": TEXT},
        authentication={"type": "api_key", "in": "query", "name": "key", "key": SECRET},
    )
    snapshot = await run(declared, {"note": "Two."})
    assert api.last.query == [("key", SECRET)]
    request = HTTPRequestSpec.model_validate(snapshot.raw["request"])
    assert request == HTTPRequestSpec(method="POST", url=f"{api.base_url}/orders", body={"note": "Two."})
    response = HTTPResponseSpec.model_validate(snapshot.raw["response"])
    assert response.status_code == 201
    assert response.body == {"id": 7, "key": "***"} == snapshot.output
    assert response.execution_time_ms > 0
    assert response.headers["set-cookie"] == response.headers["x-echo"] == "***"
    assert response.headers["content-type"] == "application/json"
    assert SECRET not in repr(snapshot)


async def test_the_output_is_made_by_the_field_mappings(api):
    """C1.4: a field that the answer lacks is left out."""
    api.tell("GET", "/x", Reply(200, {"data": [{"id": 7, "a/b": None}]}))
    output = {"id": "/data/0/id", "odd": "/data/0/a~1b", "none": "/data/9/id", "all": ""}
    snapshot = await run(tool("GET", f"{api.base_url}/x", output=output))
    assert snapshot.output == {"id": 7, "odd": None, "all": {"data": [{"id": 7, "a/b": None}]}}
    assert snapshot.raw["response"]["body"] == {"data": [{"id": 7, "a/b": None}]}


CONTENT: dict[str, Any] = {
    "/text": "Grüße aus Köln.",
    "/latin": "Grüße.",
    "/html": "<h1>Hello</h1>",
    "/xml": "<order id='7'/>",
    "/untyped": {"typed": False},
    "/nothing": None,
    "/empty": None,
    "/png": "70 bytes of image/png.",
    "/wav": "16 bytes of audio/wav.",
    "/pdf": "11 bytes of application/pdf.",
}


@pytest.mark.parametrize("path", CONTENT)
async def test_every_kind_of_content_is_a_result(api, path):
    """C5.2, C5.4: JSON, texts in their encodings, nothing at all, and what is said of the rest."""
    snapshot = await run(tool("GET", f"{api.base_url}{path}"))
    assert snapshot.state is RunState.COMPLETED
    assert snapshot.output == CONTENT[path] == snapshot.raw["response"]["body"]


@pytest.mark.parametrize("charset", ["no-such", "zip", "rot13", "undefined", "idna", "punycode", "utf-7"])
async def test_an_encoding_that_is_none_of_text_is_read_as_utf_8(api, charset):
    """C5.3: the request is done by then, so the name of an encoding must not make an error of it."""
    api.tell("POST", "/x", Reply(200, "Grüße.".encode(), {"Content-Type": f"text/plain; charset={charset}"}))
    assert (await run(tool("POST", f"{api.base_url}/x"))).output == "Grüße."


XML = "<?xml version='1.0' encoding='{}'?><name>Łódź</name>"
UNLABELLED = {
    "XML that names its encoding": ("application/xml", XML.format("ISO-8859-2"), "iso-8859-2"),
    "XML in UTF-8 that says so": ("application/soap+xml", XML.format("utf-8"), "utf-8"),
    "a table of a Western system": ("text/csv", "Name;Preis\r\nKäse;3 €\r\n", "cp1252"),
    "UTF-16 with its mark": ("text/plain", "Grüße.", "utf-16"),
}


@pytest.mark.parametrize("case", UNLABELLED)
async def test_a_text_whose_encoding_the_header_does_not_name_keeps_its_letters(api, case):
    media_type, text, encoding = UNLABELLED[case]
    api.tell("GET", "/x", Reply(200, text.encode(encoding), {"Content-Type": media_type}))
    assert (await run(tool("GET", f"{api.base_url}/x"))).output == text


async def test_pictures_and_files_are_kept_as_content_blocks(api):
    """C5.4, A2.3: agents see them as what they are."""
    picture = await run(tool("GET", f"{api.base_url}/png"))
    assert picture.content == [
        {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
    ]
    sound = await run(tool("GET", f"{api.base_url}/wav"))
    assert (sound.content or [{}])[0]["type"] == "audio"
    paper = await run(tool("GET", f"{api.base_url}/pdf"))
    assert (paper.content or [{}])[0]["resource"] == {
        "uri": f"{api.base_url}/pdf",
        "mimeType": "application/pdf",
        "blob": base64.b64encode(b"%PDF-1.7\n\xff\xfe").decode(),
    }
    assert (await run(tool("GET", f"{api.base_url}/text"))).content is None


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 500, 501, 503])
async def test_an_answer_that_is_no_success_is_a_failed_run_with_all_of_it_kept(api, status):
    """C5.3, C8.3, A7.4: in the API's words."""
    snapshot = await run(tool("POST", f"{api.base_url}/status/{status}"))
    assert snapshot.state is RunState.FAILED
    assert f"POST /status/{status}: the API answered {status} " in snapshot.error
    assert f": This is status {status}." in snapshot.error
    assert snapshot.output is None
    assert snapshot.raw["response"]["status_code"] == status
    assert snapshot.raw["response"]["body"] == {"error": f"This is status {status}."}
    assert snapshot.raw["request"]["method"] == "POST"


COMPLAINTS: dict[str, tuple[Any, str]] = {
    "Django": (
        {"amount": ["A valid number is required."], "title": ["Too long."]},
        '{"amount":["A valid number is required."],"title":["Too long."]}',
    ),
    "FastAPI": (
        {"detail": [{"loc": ["body", "amount"], "msg": "field required"}]},
        '{"detail":[{"loc":["body","amount"],"msg":"field required"}]}',
    ),
    "GitHub": (
        {
            "message": "Validation Failed",
            "errors": [{"field": "title", "code": "missing_field"}],
            "status": "422",
        },
        'Validation Failed: {"errors":[{"field":"title","code":"missing_field"}]}',
    ),
    "problem+json": (
        {
            "title": "Unprocessable Content",
            "status": 422,
            "detail": "Two fields are wrong.",
            "errors": [{"pointer": "#/amount", "detail": "must be positive"}],
        },
        'Two fields are wrong: {"errors":[{"pointer":"#/amount","detail":"must be positive"}]}',
    ),
    "Stripe": (
        {"error": {"message": "No such customer.", "param": "customer", "doc_url": None}},
        'No such customer: {"error":{"param":"customer"}}',
    ),
    "Nest": (
        {"statusCode": 422, "message": ["amount must be a number"], "error": "Unprocessable Entity"},
        '{"message":["amount must be a number"]}',
    ),
    "unknown": ([{"grösse": 3}], '[{"grösse":3}]'),
    "a message alone": ({"error": {"message": "No."}}, "No."),
    "text": ("No.", "No."),
}


@pytest.mark.parametrize("shape", COMPLAINTS)
async def test_all_that_an_api_has_against_the_arguments_is_told(api, shape):
    """C5.3, C8.3: whoever sent them has to know which of them are wrong."""
    body, told = COMPLAINTS[shape]
    api.tell("POST", "/orders", Reply(422, body))
    snapshot = await run(tool("POST", f"{api.base_url}/orders"))
    assert snapshot.error == f"POST /orders: the API answered 422 Unprocessable Content: {told}"


async def test_a_complaint_is_bounded_and_has_no_secrets(api):
    """C5.4, C9: also a secret that JSON spells in its own way."""
    secret = 'pä"ss'
    body = {"message": f"No {secret}", "keys": {secret: [secret] * 3}, "long": ["x" * 5_000]}
    api.tell("POST", "/orders", Reply(400, body))
    basic = {"type": "basic", "username": "ann", "password": secret}
    snapshot = await run(tool("POST", f"{api.base_url}/orders", authentication=basic))
    assert ': No ***: {"keys":{"***":["***","***","***"]},"long":["xxx' in snapshot.error
    assert len(snapshot.error) < 1_100
    assert "pä" not in snapshot.error and "p\\u00e4" not in snapshot.error


@pytest.mark.parametrize("path", ["/status/429", "/status/503"])
async def test_an_api_that_asks_to_come_back_later_was_not_called_so_far(api, path):
    """C5.3, C8.3: nothing happened, and how long to wait is known."""
    declared = tool(
        "POST", f"{api.base_url}{path}", constants=[{"in": "query", "name": "retry_after", "value": 7}]
    )
    with pytest.raises(Unreachable) as later:
        await run(declared)
    assert later.value.retry_after == 7
    assert later.value.details["response"]["status_code"] == int(path[-3:])
    assert later.value.details["request"]["url"] == f"{api.base_url}{path}"


@pytest.mark.parametrize("status", [408, 502, 504])
async def test_a_gateway_that_gave_up_leaves_open_whether_something_changed(api, status):
    """C5.3: what only reads has failed, the rest may have happened."""
    with pytest.raises(OutcomeUnknown, match="may have carried it out") as unknown:
        await run(tool("POST", f"{api.base_url}/status/{status}"))
    assert unknown.value.details["response"]["status_code"] == status
    assert (await run(tool("GET", f"{api.base_url}/status/{status}"))).state is RunState.FAILED


@pytest.mark.parametrize("path", ["/cut-off", "/hang-up", "/slow"])
async def test_an_answer_that_never_comes_whole_is_told_apart_by_the_method(api, path):
    """C5.3: a safe request may be sent again, another may have been carried out."""
    with pytest.raises(Unreachable) as unanswered:
        await run(tool("GET", f"{api.base_url}{path}"), request_timeout_seconds=0.2)
    assert unanswered.value.details["request"]["url"] == f"{api.base_url}{path}"
    with pytest.raises(OutcomeUnknown) as unknown:
        await run(tool("POST", f"{api.base_url}{path}"), request_timeout_seconds=0.2)
    assert unknown.value.details["request"]["method"] == "POST"


async def test_a_request_that_nobody_took_is_told_with_its_error():
    """C5.2, C5.3: as it would have been sent, without credentials."""
    bearer = {"type": "bearer", "token": SECRET}
    declared = tool("POST", "http://127.0.0.1:9/orders", {"note": TEXT}, authentication=bearer)
    with http_tool_hosts("127.0.0.1"), pytest.raises(Unreachable) as unreachable:
        await run(declared, {"note": "Two."})
    request = HTTPRequestSpec.model_validate(unreachable.value.details["request"])
    assert request.body == {"note": "Two."}
    assert SECRET not in repr(unreachable.value.details)


async def test_the_record_of_a_response_is_bounded(api):
    """C5.4: whatever an API sends."""
    snapshot = await run(tool("GET", f"{api.base_url}/big"), max_response_bytes=1_000)
    assert len(snapshot.raw["response"]["body"]) == 1_000
    snapshot = await run(tool("GET", f"{api.base_url}/many-headers"))
    headers = snapshot.raw["response"]["headers"]
    assert len(headers) <= 60
    assert max(map(len, headers.values())) == 1_000
    assert headers["content-type"] == "application/json"


async def test_a_redirect_is_followed_or_told(api):
    """C5.1: as the source's settings say."""
    declared = tool(
        "GET", f"{api.base_url}/redirect", constants=[{"in": "query", "name": "to", "value": "/text"}]
    )
    assert (await run(declared)).output == "Grüße aus Köln."
    kept = await run(declared, follow_redirects=False)
    assert (kept.state, kept.raw["response"]["status_code"]) == (RunState.FAILED, 302)
    assert kept.raw["response"]["headers"]["location"] == "/text"
    assert kept.error == "GET /redirect: the API answered 302 Found: /text"
    posted = await run(
        tool("POST", f"{api.base_url}/redirect", constants=[{"in": "query", "name": "to", "value": "/text"}])
    )
    assert posted.state is RunState.FAILED
    assert "not followed" in posted.error


@pytest.mark.parametrize("status", [404, 429, 504])
async def test_what_was_carried_out_is_never_tried_again_whatever_its_result_answers(api, status):
    """C5.3: a 303 says that it was."""
    to = [
        {"in": "query", "name": name, "value": value}
        for name, value in (("status", 303), ("to", f"/status/{status}"))
    ]
    snapshot = await run(tool("POST", f"{api.base_url}/redirect", constants=to))
    assert snapshot.state is RunState.FAILED
    assert f"answered {status}" in snapshot.error
    assert snapshot.error.endswith(". The request itself was carried out.")


async def test_a_safe_call_that_nobody_waits_for_any_more_is_broken_off(api):
    """A7.5: the connection ends, which is all that HTTP has to say."""
    declared = tool("GET", f"{api.base_url}/slow")
    task = asyncio.create_task(run(declared))
    assert await asyncio.to_thread(api.holding.wait, 5)
    task.cancel()
    await asyncio.wait({task})
    async with asyncio.timeout(5):
        while not api.broken_off:  # noqa: ASYNC110 - the API tells only who asks
            await asyncio.sleep(0.01)


OF_USE = {
    "Location": "/items/42",
    "Content-Location": "https://api.example.com/items/42",
    "Link": '<https://api.example.com/items?page=2>; rel="next"',
    "X-Total": "120",
    "X-Total-Count": "120",
    "X-WP-TotalPages": "12",
    "Pagination-Count": "7",
    "X-Next-Page": "2",
    "X-Next-Cursor": "b2Zmc2V0PTI=",
    "X-Pagination": '{"page":1,"pages":3}',
    "X-Has-More": "true",
    "x-ms-continuation": "abc",
    "X-Continuation-Token": "abc",
    "Content-Range": "items 0-24/120",
    "Operation-Location": "https://api.example.com/operations/7?v=1",
    "Azure-AsyncOperation": "https://api.example.com/operations/8",
    "OData-EntityId": "https://api.example.com/accounts(7)",
    "Retry-After": "2",
    "X-Job-Location": "/jobs/7",
}
OF_NO_USE = {
    **dict.fromkeys(("X-Request-Id", "X-Correlation-ID", "X-Trace-Id", "CF-Ray", "Server", "Via"), "x"),
    **dict.fromkeys(("X-RateLimit-Limit", "RateLimit-Remaining", "X-Rate-Limit-Count", "Age"), "1"),
    **dict.fromkeys(("Cache-Control", "Pragma", "Expires", "X-Cache-Hits", "X-Nextjs-Cache"), "no"),
    **dict.fromkeys(("Strict-Transport-Security", "X-Frame-Options", "X-Content-Type-Options"), "1"),
    **dict.fromkeys(("Access-Control-Allow-Origin", "X-Powered-By", "X-Runtime", "Server-Timing"), "1"),
    **dict.fromkeys(("Content-Language", "Traceparent", "X-Amzn-RequestId", "Vary", "Warning"), "1"),
    "Set-Cookie": "session=abc",
}


def note_of(snapshot: RunSnapshot) -> str:
    (note,) = [block["text"] for block in snapshot.content or () if block.get("_meta") == ABOUT_OUTPUT]
    return str(note)


@pytest.mark.parametrize("name", OF_USE)
async def test_a_header_that_says_what_the_body_does_not_is_told_beside_it(api, name):
    """C5.4: where something is, how many there are, and what comes next; the output stays the body."""
    api.tell("GET", "/x", Reply(200, [{"id": 1}], OF_NO_USE | {name: OF_USE[name], "ETag": '"v7"'}))
    snapshot = await run(tool("GET", f"{api.base_url}/x"))
    assert snapshot.output == [{"id": 1}]
    assert note_of(snapshot) == f'{name}: {OF_USE[name]} · ETag: "v7"'


@pytest.mark.parametrize("status", [200, 201])
async def test_of_a_usual_answer_there_is_nothing_to_tell(api, status):
    api.tell("POST", "/x", Reply(status, {"id": 1}, OF_NO_USE))
    assert (await run(tool("POST", f"{api.base_url}/x"))).content is None


@pytest.mark.parametrize("headers", [{"ETag": 'W/"v7"'}, {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}])
async def test_what_nearly_every_answer_has_is_told_as_an_aside(api, headers):
    """C5.4: it must not cost clients the structured output."""
    api.tell("GET", "/x", Reply(200, {"id": 1}, OF_NO_USE | headers))
    (aside,) = (await run(tool("GET", f"{api.base_url}/x"))).content or ()
    ((name, value),) = headers.items()
    assert (aside["_meta"], aside["text"]) == (ASIDE, f"{name}: {value}")


@pytest.mark.parametrize("status", [202, 203, 206, 207])
async def test_a_success_of_another_kind_is_told(api, status):
    """C5.4: accepted is not done."""
    api.tell("POST", "/x", Reply(status, {"id": 1}, {"Location": "/jobs/7"}))
    snapshot = await run(tool("POST", f"{api.base_url}/x"))
    assert snapshot.output == {"id": 1}
    assert note_of(snapshot) == f"Status {status} {HTTPStatus(status).phrase} · Location: /jobs/7"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 304])
async def test_an_answer_without_a_body_is_its_status_and_headers(api, status):
    """C5.4: all that may be of use."""
    told = {"Location": "/items/42", "X-Subject-Token": "abc", "ETag": '"v7"'}
    api.tell("DELETE", "/x", Reply(status, b"", OF_NO_USE | told | {"Content-Type": "application/json"}))
    imported = tool("DELETE", f"{api.base_url}/x").model_copy(update={"output_is_promised": False})
    snapshot = await run(imported)
    headers = {name.lower(): value for name, value in told.items()}
    assert (snapshot.output, snapshot.content) == ({"status": status, "headers": headers}, None)
    promised = await run(imported, promise_output_schemas=True)
    said = {f"{name}: {value}" for name, value in told.items()}
    said |= {f"Status {status} {HTTPStatus(status).phrase}"} if status != 200 else set()
    assert promised.output is None
    assert {*note_of(promised).split(" · ")} == said


async def test_the_answer_to_a_head_is_its_headers(api):
    """C5.4: those of the body too."""
    told = {
        "Content-Type": "text/csv",
        "Last-Modified": "Mon, 03 Aug 2026 10:00:00 GMT",
        "X-Docker-Stat": "e30=",
    }
    api.tell("HEAD", "/x", Reply(200, "a,b", OF_NO_USE | told))
    found = await run(tool("HEAD", f"{api.base_url}/x").model_copy(update={"output_is_promised": False}))
    headers = found.output["headers"]
    assert headers == {name.lower(): value for name, value in told.items()} | {
        "content-length": "3",
        "content-language": "1",
    }


async def test_a_declared_header_is_told_too(api):
    """C1.4, C5.4: such as the ETag that another tool needs."""
    api.tell("GET", "/x", Reply(200, {"a": 1}, {"ETag": 'W/"v7"', "X-Other": "x", "X-Request-Id": "1"}))
    declared = tool("GET", f"{api.base_url}/x", response_headers=["ETag", "X-Request-Id"])
    assert note_of(await run(declared)) == 'ETag: W/"v7"'


async def test_headers_are_told_within_bounds_and_without_secrets(api):
    """C5.4, C9."""
    many = {f"X-{number}-Total": "y" * 2_000 for number in range(70)} | {"Location": f"/x?key={SECRET}"}
    api.tell("GET", "/x", Reply(200, {}, {"Location": f"/x?key={SECRET}\x01\x1b[1m"} | many))
    declared = tool("GET", f"{api.base_url}/x", authentication={"type": "bearer", "token": SECRET})
    note = note_of(await run(declared))
    assert note.startswith("Location: /x?key=***") and note.isprintable()
    assert len(note) < 11_000


async def test_where_a_result_was_found_is_told(api):
    """C5.1: after 303, whose Location names what was made."""
    to = [{"in": "query", "name": name, "value": value} for name, value in (("status", 303), ("to", "/text"))]
    snapshot = await run(tool("POST", f"{api.base_url}/redirect", constants=to))
    assert snapshot.output == "Grüße aus Köln."
    assert note_of(snapshot) == f"Location: {api.base_url}/text"
