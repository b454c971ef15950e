"""Measurements, each against something measured in the same run: `python -m dev.benchmarks`."""
