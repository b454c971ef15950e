"""The admin of natural-language requests."""

from orchestration.admin import workflow_requests

__all__ = ["workflow_requests"]
