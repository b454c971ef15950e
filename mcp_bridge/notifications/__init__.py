"""Notifications of changes: what clients listen for, what they see of it, the streams that carry the news."""
