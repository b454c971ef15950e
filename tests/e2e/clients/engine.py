"""An engine with the workflows beside this file: `python -m tests.e2e.clients.engine URL`."""

import sys

from tests.e2e.clients.workflows import WORKFLOWS
from tests.e2e.simplified_engine import Engine

if __name__ == "__main__":
    Engine(WORKFLOWS).serve(sys.argv[1])
