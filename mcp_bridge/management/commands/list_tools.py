"""`manage.py list_tools`"""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from catalogue.exposure import current_catalogue
from mcp_bridge.access import Access
from mcp_bridge.tools import visible_tools


class Command(BaseCommand):
    help = "Show the tools that an agent would see."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--json", action="store_true", help="whole definitions, as in the answer to tools/list"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        tools = visible_tools(current_catalogue(), Access.of_local_user())
        if options["json"]:
            shown = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
            self.stdout.write(json.dumps(shown, indent=2, ensure_ascii=False))
            return
        width = max(len(tool.name) for tool in tools)
        for tool in tools:
            first_line = (tool.description or "").split("\n")[0]
            self.stdout.write(f"{tool.name:<{width}}  {first_line[:100]}")
