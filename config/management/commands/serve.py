from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from catalogue.management.base import CatalogueCommand, whole_number
from config.web_server import serve


class Command(CatalogueCommand):
    help = "Run one web process: MCP, REST and the admin. Any number of them share the work."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="Address to listen on. Default: %(default)s.")
        parser.add_argument(
            "--port", type=whole_number(0, 65_535), default=settings.ENVIRONMENT.port, help="Default: PORT."
        )
        parser.add_argument(
            "--graceful-seconds",
            type=whole_number(0),
            default=10,
            help="How long a stop waits for requests under way. Default: %(default)s.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            serve(host=options["host"], port=options["port"], graceful_seconds=options["graceful_seconds"])
        except KeyboardInterrupt:
            # uvicorn raises this after a signal, once everything is closed.
            return
