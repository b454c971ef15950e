#!/bin/sh
# Install the product from a checkout into an environment of its own: install.sh CHECKOUT ENVIRONMENT.
# The steps of the image, which a plain machine can take as well. Needs Python 3.11 or newer with `venv`, and pip's
# usual configuration. What is installed is what requirements/product.lock names, with its hashes, and the wheel.
set -eu
checkout=$1 environment=$2
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

python3 -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps \
    --requirement "$checkout/requirements/product.lock"
# The build's own tools stay out of it.
python3 -m venv "$build/environment"
"$build/environment/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$build" "$checkout"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-index \
    "$build"/workflow_catalogue-*.whl
# pip compiles what it installs; nothing is written there later. A running product needs no pip.
"$environment/bin/pip" uninstall --quiet --yes pip setuptools 2>/dev/null || true
"$environment/bin/workflow-catalogue" --version >/dev/null
