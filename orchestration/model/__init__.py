"""The language model: one server that speaks the API of chat completions."""
