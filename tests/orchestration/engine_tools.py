"""Workflows of the example engine, for natural-language requests."""

from catalogue.discovery import refresh_source
from tests.factories import make_source
from tests.processes import ExampleEngine


def discover(engine: ExampleEngine) -> None:
    """All that it lists, exposed."""
    source = make_source("example", base_url=engine.base_url, api_key=engine.api_key, new_workflows="exposed")
    refresh_source(source)
