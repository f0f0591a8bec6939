#!/usr/bin/env bash
# Everything that `make test` checks, one stage after the other; a failing stage does not hide the later ones.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
PY=.venv/bin/python
mkdir -p build
log=build/test.log
: > $log
failed=
skipped=

stage() { # name, command …
    local name=$1
    shift
    echo
    echo "== $name"
    "$@" 2>&1 | tee -a $log
    [ "${PIPESTATUS[0]}" = 0 ] || failed="$failed $name"
}

if [ -z "${CHROMIUM:-}" ]; then
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        CHROMIUM=$(command -v $name) && break
    done
    [ -n "$CHROMIUM" ] || CHROMIUM=$(ls "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" 2>/dev/null)
fi
export CHROMIUM

stage lint $PY -m ruff check .
stage types $PY -m mypy
bash scripts/typescript.sh  # for tests/test_player_types.py

model=yes
if ! $PY -m kvviz.smollm2; then
    # CI must not pass by skipping half of its work
    if [ -n "${CI:-}" ]; then failed="$failed model"; fi
    model=no
    skipped="kvviz: skipped: the notebooks and the tests marked 'model': the default model is not to be had (see above)"
fi

# two files at a time, each on its share of the cores: more threads than cores would only wait for one another
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(((cores + 1) / 2))}
together="-n 2 --dist loadfile"
if [ $model = yes ]; then
    stage tests $PY -m pytest $together tests
    stage notebooks $PY -m pytest $together --nbval-lax notebooks
else
    stage tests $PY -m pytest $together tests -m "not model"
fi

echo
grep -hE '^SKIPPED ' $log | sed 's/^SKIPPED/kvviz: skipped/' | sort -u
[ -z "$skipped" ] || echo "$skipped"
grep -qE '^SKIPPED ' $log || [ -n "$skipped" ] || echo "kvviz: nothing was skipped"
if [ -n "$failed" ]; then
    echo "kvviz: FAILED:$failed"
    exit 1
fi
echo "kvviz: all checks passed (${SECONDS} s)"
