"""REST's door to requests in words."""
