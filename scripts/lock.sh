#!/usr/bin/env bash
# Compile the hashed lock files from pyproject.toml, without any index address in them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
uv="${UV:-.venv/bin/uv}"
[ -x "$uv" ] || .venv/bin/python -m pip install --quiet uv
options=(--generate-hashes --no-emit-index-url --no-emit-find-links --universal --python-version 3.11
    --quiet --no-header --no-annotate)
printf 'setuptools\nwheel\n' | "$uv" pip compile - "${options[@]}" -o requirements/build.txt
"$uv" pip compile pyproject.toml --extra demo --extra connect --extra iceberg --group dev --group compat "${options[@]}" -o requirements/dev.txt
# The lock of the image: a broker with all pages of its console, and Numba for the build of the wheel, with the
# versions and hashes of the development lock.
"$uv" pip compile pyproject.toml --extra client --extra compile --constraint requirements/dev.txt "${options[@]}" -o deploy/requirements.txt
