from argparse import ArgumentParser
from functools import partial
from typing import Any

import anyio

from catalogue.database import prepare_embedded_database, require_database
from catalogue.exposure import current_catalogue
from catalogue.management.base import CatalogueCommand
from executions.local_worker import LocalWorker
from mcp_bridge.management import add_toolset_option, local_access
from mcp_bridge.transports.stdio import serve_stdio


class Command(CatalogueCommand):
    help = (
        "Serve MCP on standard input and output as the local user. Logs go to standard error. Where no "
        "worker is running it lists the engines and follows the runs itself."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_toolset_option(parser, what="serve this toolset, as /mcp/<slug> does")

    def handle(self, *args: Any, **options: Any) -> None:
        # Errors should show now, not at the first request.
        require_database()
        prepare_embedded_database()
        current_catalogue()
        access = local_access(options)
        worker = LocalWorker()
        worker.begin()
        anyio.run(partial(serve_stdio, access, worker=worker))
