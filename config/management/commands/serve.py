import asyncio
import errno
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from catalogue.management.base import CatalogueCommand, whole_number
from config.web_server import serve


async def _bind(host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    (await loop.create_server(asyncio.Protocol, host, port, start_serving=False)).close()


class Command(CatalogueCommand):
    help = (
        "Run a web process, which serves MCP, REST and the admin. Any number of web processes share the work."
    )
    serves_metrics = True

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="Address to listen on. Default: %(default)s.")
        parser.add_argument(
            "--port", type=whole_number(0, 65_535), default=settings.ENVIRONMENT.port, help="Default: PORT."
        )
        parser.add_argument(
            "--graceful-seconds",
            type=whole_number(0),
            default=10,
            help="Seconds to wait for requests in progress when stopping. Default: %(default)s.",
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        # Before the server, which would fail a second later, between lines that suggest a start
        host, port = options["host"], options["port"]
        try:
            asyncio.run(_bind(host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CommandError(
                    f"Port {port} of {host} is in use, perhaps by another web process or a "
                    "quickstart. Choose another port with --port or PORT."
                ) from None
            option = "--port" if error.errno == errno.EACCES else "--host"
            why = f"cannot listen on port {port} of {host}: {error.strerror or error}"
            raise CommandError(f"{option}: {why}.") from None
        return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            serve(host=options["host"], port=options["port"], graceful_seconds=options["graceful_seconds"])
        except KeyboardInterrupt:
            # uvicorn raises this after a signal, once everything is closed.
            return
