#!/usr/bin/env bash
# Runs every program in benchmarks/, one after the other; each prints its own figures.
set -euo pipefail
cd "$(dirname "$0")/.."
for file in benchmarks/*.py; do
    grep -q '__main__' "$file" || continue
    name=$(basename "$file" .py)
    echo "== $name"
    .venv/bin/python -m "benchmarks.$name"
done
