"""REST's door to what ran."""
