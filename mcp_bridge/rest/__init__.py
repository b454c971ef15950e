"""REST's door to toolsets."""
