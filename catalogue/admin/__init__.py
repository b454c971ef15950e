"""The admin of the catalogue, a file for each kind of page."""

from catalogue.admin import discovery_runs, filters, product_settings, reviews, sources, workflows

__all__ = ["discovery_runs", "filters", "product_settings", "reviews", "sources", "workflows"]
