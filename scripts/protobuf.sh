#!/usr/bin/env bash
# Compile the frame header's schema. The result is committed; tests check that it is up to date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-src}
.venv/bin/python -m grpc_tools.protoc --proto_path=src --python_out="$out" --pyi_out="$out" \
    penstock/wire/frames/header.proto
