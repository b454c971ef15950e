"""What a declaration would send, without sending it."""

import json
from collections.abc import Iterator
from typing import Any

from connectors.formats.yaml import name_of
from connectors.http_job.declaration import Declaration, List, Request, Webhook
from connectors.http_job.engine import content_of, target_of
from connectors.http_job.template import fill_headers, placeholders_in
from connectors.http_job.webhook import find_end

KEY = "00000000-0000-4000-8000-000000000000"


def describe_requests(declared: Declaration, arguments: dict[str, Any]) -> Iterator[str]:
    """Each request as text, with names in capitals for what only the engine or a source's settings know."""
    for place, request, known in declared.requests:
        values: dict[str, Any] = {name: name.upper() for name in known}
        values |= {name: value for name, value in declared.values.items() if name in known}
        values |= {"key": KEY} if "key" in known else {}
        values |= {"arguments": arguments} if "arguments" in known else {}
        if place == ("list",):
            values |= _first_page(declared.list)
        yield f"{name_of(place)}\n{_written(declared, request, values)}"


def describe_webhook(webhook: Webhook, report: Any = None) -> str:
    """What the engine has to send; and of a report, as JSON, what is read in it. Raises InvalidAnswer."""
    lines = ["webhook", "  the engine sends: POST /hooks/SOURCE"]
    if (signature := webhook.signature) is not None:
        signed = f"HMAC-SHA256 of {signature.signs} in {signature.encoding}"
        lines.append(f"  {signature.header}: {signature.prefix}<{signed}>")
    if (secret := webhook.secret) is not None:
        lines.append(f"  {secret.header}: {secret.prefix}<the webhook secret>")
    if report is not None:
        end = find_end(webhook, report)
        of = f" of workflow {end.workflow_id}" if end and end.workflow_id else ""
        lines.append(
            f"  the delivery reports the end of run {end.run_id}{of}"
            if end
            else "  the delivery reports no end"
        )
    return "\n".join(lines)


def _first_page(listing: List) -> dict[str, Any]:
    pages = listing.pages
    size = pages.size if pages else ""
    return {"offset": 0, "page": pages.first if pages else "", "cursor": "", "limit": size}


def _written(declared: Declaration, request: Request, values: dict[str, Any]) -> str:
    headers = fill_headers(dict(declared.headers), declared.values) | fill_headers(request.headers, values)
    content = content_of(request, values)
    lines = [f"  {request.method} {target_of(request, values)}"]
    lines += [f"  {name}: {value}" for name, value in headers.items()]
    lines += [f"  {name}: {template}" for name, template in declared.login.headers.items()]
    if "body" in content:
        lines += ["  " + line for line in json.dumps(content["body"], indent=2).splitlines()]
    if "form" in content:
        lines += [f"  {name}={value}" for name, value in content["form"].items()]
    missing = sorted({name for name in _arguments_in(request) if name not in values.get("arguments", {})})
    lines += [f"  (without an argument {name})" for name in missing]
    return "\n".join(lines)


def _arguments_in(request: Request) -> Iterator[str]:
    for _, template in request.templates:
        for name in placeholders_in(template):
            if name.startswith("arguments."):
                yield name.removeprefix("arguments.")
