"""The product under load while its processes are killed, checked against the engine's own record.

`python -m dev.chaos --help`, or `make chaos`.
"""
