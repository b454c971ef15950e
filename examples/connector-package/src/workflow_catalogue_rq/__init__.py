"""Workflow Catalogue's connector to RQ (Redis Queue)."""

from workflow_catalogue_rq.connector import RqConnector

__all__ = ["RqConnector"]
