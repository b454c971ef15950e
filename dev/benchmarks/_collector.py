"""A collector of traces that reads what it gets and keeps nothing; a GET tells how much that was."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

received = [0]


async def take(request: Request) -> Response:
    received[0] += len(await request.body())
    return Response(b"", media_type="application/x-protobuf")


async def tell(request: Request) -> Response:
    return PlainTextResponse(str(received[0]))


application = Starlette(routes=[Route("/v1/traces", take, methods=["POST"]), Route("/received", tell)])
