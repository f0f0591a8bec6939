#!/usr/bin/env bash
# Fetches the TypeScript compiler that checks the player's types into build/, once. Without npm it says so and goes on.
cd "$(dirname "$0")/.." || exit 1
[ -e build/typescript/node_modules/typescript/bin/tsc ] && exit 0
if ! command -v npm >/dev/null; then
    echo "kvviz: no npm here, so the player's types are not checked"
    exit 0
fi
npm install --silent --no-audit --no-fund --prefix build/typescript typescript@5.9.3 >/dev/null 2>&1 ||
    echo "kvviz: npm could not fetch the TypeScript compiler, so the player's types are not checked"
