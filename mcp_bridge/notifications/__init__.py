"""Notifications of changes, and the streams that carry them."""
