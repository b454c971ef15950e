"""Answers that change rarely: an ETag for each, and 304 for callers who have it already.

The tag is of the answer's own bytes and of who asks, so that it is right whatever the answer is made of: the
catalogue's revision says nothing of health, counts and executions, which stand in the same answers.
"""

import hashlib
from typing import Any

from django.http import HttpResponse, HttpResponseBase
from django.utils.cache import get_conditional_response, patch_vary_headers
from rest_framework.request import Request
from rest_framework.response import Response

VARIES_WITH = ("Accept", "Authorization", "Cookie")


def make_conditional(request: Request, response: Response) -> None:
    """Of an answer to GET, once it is rendered."""
    if request.method in ("GET", "HEAD") and response.status_code == 200:
        response.add_post_render_callback(lambda rendered: _tag(request, rendered))


def _tag(request: Request, response: HttpResponse) -> HttpResponseBase:
    patch_vary_headers(response, VARIES_WITH)
    token: Any = request.auth
    who = request.user.pk if token is None else token.caller.key
    told = f"{who} {response.get('Content-Type')} ".encode() + response.content
    response["ETag"] = f'"{hashlib.sha256(told).hexdigest()[:32]}"'
    answer = get_conditional_response(request._request, etag=response["ETag"], response=response)
    return response if answer is None else answer
