#!/bin/sh
# Install a real n8n, for its tests in tests/connectors/contracts: install_n8n.sh [FOLDER], by default .cache/n8n.
# It takes about ten minutes and 1.4 GB. `make test-n8n` calls it.
set -eu
cd "$(dirname "$0")/../.."
folder=${1:-.cache/n8n}
test ! -e "$folder/installed" || exit 0
mkdir -p "$folder"
cp tests/engines/n8n-package.json "$folder/package.json"
cd "$folder"
npm install --ignore-scripts --legacy-peer-deps --no-audit --no-fund --no-progress --loglevel=error
npm rebuild sqlite3 --build-from-source
touch installed
