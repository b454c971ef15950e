"""The limits, and the queue in front of them."""
