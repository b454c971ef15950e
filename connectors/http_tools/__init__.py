"""HTTP APIs whose calls are declared as tools."""

from connectors.http_tools.connector import HttpConnector

__all__ = ["HttpConnector"]
