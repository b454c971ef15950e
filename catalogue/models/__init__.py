"""What exists in the engines, and what the curators made of it."""

from catalogue.models.discovery_run import DiscoveryRun
from catalogue.models.history_entry import HistoryEntry
from catalogue.models.product_settings import ProductSettings
from catalogue.models.review import Review
from catalogue.models.revision import Exposing, Revision
from catalogue.models.rules import ChoosingRule, ToolsetRule, WorkflowFilter
from catalogue.models.source import Source
from catalogue.models.toolset import Toolset
from catalogue.models.workflow import Workflow

__all__ = [
    "ChoosingRule",
    "DiscoveryRun",
    "Exposing",
    "HistoryEntry",
    "ProductSettings",
    "Review",
    "Revision",
    "Source",
    "Toolset",
    "ToolsetRule",
    "Workflow",
    "WorkflowFilter",
]
