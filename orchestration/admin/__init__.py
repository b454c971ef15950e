"""The admin of natural-language requests, a file for each kind of page."""

from orchestration.admin import workflow_requests

__all__ = ["overview", "workflow_requests"]
