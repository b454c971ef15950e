"""How well a model chooses tools and their arguments: `python -m dev.evaluation`."""
