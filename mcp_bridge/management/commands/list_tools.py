import json
from argparse import ArgumentParser
from typing import Any

from catalogue.exposure import current_catalogue
from catalogue.management.base import CatalogueCommand
from identity.management import add_toolset_option, local_access
from mcp_bridge.tool_lists import cost_of_catalogue, cost_of_toolset, visible_tools


class Command(CatalogueCommand):
    help = "Show the tools that an agent sees, and how much of its context their list takes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--json", action="store_true", help="print full definitions, as in the response to tools/list"
        )
        add_toolset_option(parser, what="show the tools of this toolset")

    def handle(self, *args: Any, **options: Any) -> None:
        access, catalogue = local_access(options), current_catalogue()
        tools = visible_tools(catalogue, access)
        if options["json"]:
            shown = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
            self.stdout.write(json.dumps(shown, indent=2, ensure_ascii=False))
            return
        width = max(len(tool.name) for tool in tools)
        for tool in tools:
            first_line = (tool.description or "").split("\n")[0]
            self.stdout.write(f"{tool.name:<{width}}  {first_line[:100]}")
        cost = cost_of_catalogue(catalogue)
        if access.toolset is not None:
            cost = cost_of_toolset(catalogue.toolsets[access.toolset].toolset, catalogue)
        self.stdout.write(f"\n{cost.served}. {cost.warning or cost.compared}".rstrip())
