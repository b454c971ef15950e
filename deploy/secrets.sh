#!/bin/sh
# Make the secrets of compose.yaml once, in secrets/ beside it. Existing ones stay.
set -eu
cd "$(dirname "$0")"
# The files have to be readable in the containers, whose user is another one; the folder is not.
mkdir -p -m 0700 secrets
cd secrets
random() { od -An -N 32 -t x1 /dev/urandom | tr -d ' \n'; }
[ -e POSTGRES_PASSWORD ] || random >POSTGRES_PASSWORD
[ -e SECRET_KEY ] || random >SECRET_KEY
[ -e DATABASE_URL ] || printf 'postgres://catalogue:%s@database/catalogue' "$(cat POSTGRES_PASSWORD)" >DATABASE_URL
