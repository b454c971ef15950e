"""From the tools that may be used to one call that may be made."""
