"""Importing OpenAPI documents as HTTP tools, and its REST door."""
