"""Measurements of the product, each against something measured in the same run: `python -m benchmarks`."""
