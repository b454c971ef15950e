#!/bin/sh
# Install a small real model and its server into .venv-model, for the tests and `make eval` that use them: install_model.sh.
# The server is compiled, which takes about ten minutes. PYTHON names the interpreter.
set -eu
cd "$(dirname "$0")/../.."
# Not for this processor alone: where AMX is shown but may not be used, such a build crashes. A build that pip keeps may
# be of that kind.
export CMAKE_ARGS=-DGGML_NATIVE=OFF PIP_NO_CACHE_DIR=1
exec "${PYTHON:-python3}" dev/scripts/install.py .venv-model requirements/model.lock
