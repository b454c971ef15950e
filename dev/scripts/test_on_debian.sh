#!/usr/bin/env bash
# Runs the tests that need no foreign server on another Debian, with its Python, SQLite and OpenSSL, as they are
# committed: dev/scripts/test_on_debian.sh trixie [arguments for pytest]. Needs root and debootstrap. The system stays in
# .cache/debian (1 GB).
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --inside ]; then
    shift
    python3 -c 'import sqlite3, ssl, sys; print("Python", sys.version.split()[0], "SQLite", sqlite3.sqlite_version, ssl.OPENSSL_VERSION)'
    make install-dev
    exec .venv/bin/python -m pytest -n 3 -m "not engines and not e2e" "$@"
fi

suite=${1:-trixie}
shift || true
root=$PWD/.cache/debian/$suite

if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "This needs root and debootstrap (Debian: apt-get install debootstrap)." >&2
    exit 2
fi
if [ ! -e "$root/ready" ]; then
    mkdir -p "$root"
    echo "Installing Debian $suite into $root; its output is in $root.log ..."
    # Newer suites than this debootstrap knows are installed like sid.
    script=/usr/share/debootstrap/scripts/$suite
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
    debootstrap --variant=minbase --include=python3-venv,python3-dev,make,git,gcc,g++,ca-certificates,procps \
        "$suite" "$root" "${MIRROR:-http://deb.debian.org/debian}" "$script" >"$root.log" 2>&1 ||
        { tail -n 20 "$root.log" >&2; exit 1; }
    touch "$root/ready"
fi
cp /etc/resolv.conf "$root/etc/resolv.conf"
# A company's proxy may have an authority of its own.
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
rm -rf "$root/checkout/tree"
mkdir -p "$root/checkout"
git clone --quiet . "$root/checkout/tree"

# The mounts are seen by these processes only, and end with them.
exec unshare --mount --propagation private bash -c '
    set -e
    root=$1
    shift
    for folder in proc sys dev; do
        mount --rbind "/$folder" "$root/$folder"
    done
    exec chroot "$root" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
        bash /checkout/tree/scripts/test_on_debian.sh --inside "$@"' bash "$root" "$@"
