#!/usr/bin/env bash
# Runs every benchmark, one after the other; each prints its own figures.
set -euo pipefail
cd "$(dirname "$0")/.."
for file in benchmarks/bench_*.py benchmarks/view.py; do
    name=$(basename "$file" .py)
    echo "== $name"
    .venv/bin/python -m "benchmarks.$name"
done
