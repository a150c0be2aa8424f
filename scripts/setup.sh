#!/usr/bin/env bash
# Make .venv at the project root with the locked dependencies and Penstock itself, and see that a
# Java runtime for Spark is there. Safe to run again: it does only what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}

"$python" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 11):
    sys.exit(f"Penstock needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. "
             "Set PYTHON to a newer one: make setup PYTHON=python3.12")
PY

say() { printf '\033[2m%s\033[0m\n' "$*"; }

if [ ! -x .venv/bin/python ]; then
    say "Making the virtual environment in .venv"
    if ! "$python" -m venv .venv; then
        echo "The virtual environment could not be made: this Python lacks the venv module (Debian: apt-get install python3-venv)." >&2
        exit 1
    fi
fi
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
say "Installing the locked dependencies (about a minute on a first run)"
pip install --quiet --require-hashes -r requirements/build.txt
pip install --quiet --require-hashes --no-build-isolation -r requirements/dev.txt
pip install --quiet --no-deps --no-build-isolation --editable .
say "Compiling kernels and tests"
.venv/bin/python scripts/kernels.py
.venv/bin/penstock kernels >/dev/null
# Each process of a test run would compile all of them; a file that cannot be read fails the run.
.venv/bin/python -m pytest --collect-only -qq >/dev/null || true

scripts/java.sh
say "Keeping Java's classes (about a minute)"
.venv/bin/penstock pipeline prepare >/dev/null || say "They could not be kept; Spark starts without."
touch .venv/.ready
say "Ready."
