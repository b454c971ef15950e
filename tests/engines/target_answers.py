"""What `tests.engines.target_api` answers where a test says nothing else.

/orders, /orders/{id}   POST makes one (once per Idempotency-Key), GET shows it, DELETE removes it
/weather/{city}         the weather there
/echo...                what arrived, as JSON
/status/{code}          an answer with that status; ?retry_after=7 adds the header
/slow                   an answer that is held back
/redirect               ?to=URL, ?status=307 (302)
/big                    ?bytes=N of text in JSON
/text /html /xml /png /wav /pdf /untyped   other kinds of content
/nothing /empty         204; 200 without a body
/malformed /cut-off /hang-up               answers that are none
/many-headers           hundreds of headers, and long ones
/leak                   repeats the request's headers and query in headers and body
/oauth/token            tokens by client credentials; `api.kept["token"]` is the one that is good
"""

import base64
from typing import Any

from tests.engines.target_wire import Arrived, Reply, TargetApi, decoded_path

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SOUND = b"RIFF$\x00\x00\x00WAVEfmt "
CLIENT_ID = "catalogue"
CLIENT_SECRET = "client-secret-0123456789abcdef"


def answer(api: TargetApi, request: Arrived) -> Reply:
    first, *rest = decoded_path(request)
    made = ENDPOINTS.get(first)
    if made is not None:
        return made(api, request, rest)
    return FIXED.get(request.path, Reply(404, {"error": f"nothing at {request.path}"}))


def _orders(api: TargetApi, request: Arrived, rest: list[str]) -> Reply:
    orders: dict[str, Any] = api.kept.setdefault("orders", {})
    if request.method == "POST" and not rest:
        return _new_order(orders, request)
    order = orders.get(rest[0]) if rest else None
    if rest and order is None:
        return Reply(404, {"error": {"message": f"There is no order {rest[0]}."}})
    if request.method == "DELETE":
        del orders[rest[0]]
        return Reply(204)
    return Reply(200, {"order": order} if rest else {"orders": list(orders.values())})


def _new_order(orders: dict[str, Any], request: Arrived) -> Reply:
    key = request.header("idempotency-key")
    found = [order for order in orders.values() if key and order["key"] == key]
    if not found:
        number = str(len(orders) + 1)
        asked = request.json if request.body else {}
        orders[number] = {"id": int(number), "key": key, "asked": asked}
        found = [orders[number]]
    return Reply(201, {"order": found[0]}, {"Location": f"/orders/{found[0]['id']}"})


def _weather(api: TargetApi, request: Arrived, rest: list[str]) -> Reply:
    units = dict(request.query).get("units", "metric")
    city = rest[0] if rest else dict(request.query).get("city", "")
    return Reply(200, {"city": city, "temperature": 21.5, "units": units, "sky": "clear"})


def _echo(api: TargetApi, request: Arrived, rest: list[str]) -> Reply:
    return Reply(
        200,
        {
            "method": request.method,
            "target": request.target,
            "query": request.query,
            "body": request.body.decode("utf-8", "replace"),
        },
    )


def _status(api: TargetApi, request: Arrived, rest: list[str]) -> Reply:
    wait = dict(request.query).get("retry_after")
    headers = {"Retry-After": wait} if wait else {}
    return Reply(int(rest[0]), {"error": f"This is status {rest[0]}."}, headers)


def _redirect(api: TargetApi, request: Arrived, rest: list[str]) -> Reply:
    asked = dict(request.query)
    return Reply(int(asked.get("status", "302")), None, {"Location": asked["to"]})


def _big(api: TargetApi, request: Arrived, rest: list[str]) -> Reply:
    return Reply(200, {"text": "x" * int(dict(request.query).get("bytes", "1000000"))})


def _leak(api: TargetApi, request: Arrived, rest: list[str]) -> Reply:
    told = [value for _, value in [*request.headers, *request.query]]
    told += [base64.b64decode(value[6:]).decode() for value in told if value.startswith("Basic ")]
    status = int(rest[0]) if rest else 200
    return Reply(
        status, {"error": " ".join(told), "all": told}, {"X-Told": " ".join(told).replace("\n", " ")}
    )


def _token(api: TargetApi, request: Arrived, rest: list[str]) -> Reply:
    asked = dict(request.form)
    if (asked.get("client_id"), asked.get("client_secret")) != (CLIENT_ID, CLIENT_SECRET):
        return Reply(401, {"error": "invalid_client"})
    number = api.kept["tokens"] = api.kept.get("tokens", 0) + 1
    token = api.kept["token"] = f"access-token-{number}-0123456789abcdef"
    api.required_headers = {"authorization": f"Bearer {token}"}
    return Reply(200, {"access_token": token, "token_type": "Bearer", "expires_in": 3600})


ENDPOINTS = {
    "orders": _orders,
    "weather": _weather,
    "echo": _echo,
    "status": _status,
    "redirect": _redirect,
    "big": _big,
    "leak": _leak,
    "oauth": _token,
}
FIXED = {
    "/": Reply(200, {"name": "A target API"}),
    "/slow": Reply(200, {"done": True}, held=True),
    "/text": Reply(200, "Grüße aus Köln.", {"Content-Type": "text/plain; charset=utf-8"}),
    "/latin": Reply(200, "Grüße.".encode("latin-1"), {"Content-Type": "text/plain; charset=iso-8859-1"}),
    "/html": Reply(200, "<h1>Hello</h1>", {"Content-Type": "text/html"}),
    "/xml": Reply(200, "<order id='7'/>", {"Content-Type": "application/xml"}),
    "/png": Reply(200, PNG, {"Content-Type": "image/png"}),
    "/wav": Reply(200, SOUND, {"Content-Type": "audio/wav"}),
    "/pdf": Reply(200, b"%PDF-1.7\n\xff\xfe", {"Content-Type": "application/pdf"}),
    "/untyped": Reply(200, b'{"typed": false}'),
    "/nothing": Reply(204),
    "/empty": Reply(200, b"", {"Content-Type": "application/json"}),
    "/malformed": Reply(200, '{"order": {"id": 7', {"Content-Type": "application/json"}),
    "/cut-off": Reply(200, '{"order": {"id": 7', {"Content-Type": "application/json"}, cut_off=True),
    "/hang-up": Reply(hangs_up=True),
    "/many-headers": Reply(200, {"ok": True}, {f"X-Header-{number}": "y" * 1_500 for number in range(70)}),
}
