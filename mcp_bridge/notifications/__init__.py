"""Notifier clients of changes: what they listen for, what they see of it, the streams that carry the news."""
