"""The engines' workflows, and the curators' decisions about them."""

from catalogue.models.history import Exposing, HistoryEntry, Recorded, Revision
from catalogue.models.installation import ProductSettings
from catalogue.models.saved_view import SavedView
from catalogue.models.server_feature import AppPage, ServerFeature
from catalogue.models.source import DiscoveryRun, Source
from catalogue.models.toolset import ChoosingRule, Toolset, ToolsetRule, WorkflowFilter
from catalogue.models.workflow import Review, Workflow

__all__ = [
    "AppPage", "ChoosingRule", "DiscoveryRun", "Exposing", "HistoryEntry", "ProductSettings", "Recorded",
    "Review", "Revision", "SavedView", "ServerFeature", "Source", "Toolset", "ToolsetRule",
    "Workflow", "WorkflowFilter",
]  # fmt: skip
