"""OpenAPI 3 documents as tools: each operation becomes one, or says why it cannot."""
