"""Configuration as code: what curators decided as one YAML text, and back.

`fields` says what of each model is in the file, `document` reads one, `exporting` writes one, and `importing`
makes the catalogue what one says.
"""
