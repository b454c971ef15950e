import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from catalogue.management.base import CatalogueCommand
from identity.client_configuration import (
    TOKEN_HERE,
    HttpServer,
    McpClient,
    StdioServer,
    configurations_of,
    server_for_users,
)
from identity.management import add_toolset_option, chosen_toolset
from identity.models import AccessToken
from identity.tokens import Access, OtherToolset, digest_of

CONNECTION_SETTINGS = ("DATABASE_URL", "CELERY_BROKER_URL", "SECRET_KEY")  # Named, not printed: secrets


class Command(CatalogueCommand):
    help = (
        "Print the configuration with which MCP clients connect, over HTTP or over stdio as the local user."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--client",
            choices=[client.value for client in McpClient],
            help="print only the configuration for this client (default: for each client)",
        )
        parser.add_argument(
            "--token",
            metavar="TOKEN",
            help="token for clients that do not sign users in; - reads it from standard input",
        )
        parser.add_argument(
            "--stdio",
            action="store_true",
            help="print the configuration for clients that start the server themselves",
        )
        add_toolset_option(parser, what="connect to this toolset")

    def handle(self, *args: Any, **options: Any) -> None:
        server = self._stdio_server(options) if options["stdio"] else self._http_server(options)
        if (chosen := options["client"]) is not None:
            self.stdout.write(server.configure(McpClient(chosen)))
            return
        for client, text, _ in configurations_of(server):
            self.stdout.write(f"# {client.label} ({client}): {client.place}\n\n{text}\n\n")

    def _http_server(self, options: dict[str, Any]) -> HttpServer:
        toolset = chosen_toolset(options)
        slug = None if toolset is None else toolset.slug
        if (text := options["token"]) is None:
            server = server_for_users(slug)
            self.stderr.write(
                "The client signs you in through the browser. For a client that cannot, add "
                "--token TOKEN: manage.py create_mcp_token NAME creates a token."
                if server.token is None
                else f"Replace {TOKEN_HERE} with an access token: manage.py create_mcp_token NAME "
                "creates one."
            )
            return server
        text = sys.stdin.readline().strip() if text == "-" else text
        token = AccessToken.objects.usable().select_related("toolset").filter(digest=digest_of(text)).first()
        if token is None:
            raise CommandError("This token is unknown, revoked or expired.")
        try:
            return HttpServer(token=text, toolset=Access.by_token(token).at(slug).toolset)
        except OtherToolset:
            raise CommandError(f"This token is bound to the toolset {token.caller.toolset}.") from None

    def _stdio_server(self, options: dict[str, Any]) -> StdioServer:
        if options["token"] is not None:
            raise CommandError(
                "--stdio does not take a token: the server runs as the local user who starts it."
            )
        if missing := [name for name in CONNECTION_SETTINGS if os.environ.get(name)]:
            self.stderr.write(
                f"Add {', '.join(missing)} to the configuration with their current values: a "
                "client starts the server without them."
            )
        toolset = chosen_toolset(options)
        return StdioServer(toolset=None if toolset is None else toolset.slug)
