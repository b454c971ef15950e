"""REST's door to natural-language requests."""
