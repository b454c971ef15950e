"""Times as the product's own pages show them, with their zone."""

DATETIME_FORMAT = "Y-m-d H:i:s T"
