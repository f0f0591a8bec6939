#!/usr/bin/env bash
# Sets up, once, torch's CUDA build over the stub CUDA runtime: a minute or two, 1.2 GB in ~/.cache/kvviz-cuda-stub (or in
# $KVVIZ_CUDA_STUB). Exit status 3: not on this machine.
set -euo pipefail
cannot() { echo "kvviz: skipped: the CUDA path needs $*"; exit 3; }

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || cannot "Linux on x86-64, this is $(uname -s) on $(uname -m)"
for tool in gcc nm readelf; do
    command -v $tool >/dev/null || cannot "$tool (on Debian and Ubuntu: apt install gcc libc6-dev)"
done
source "$(dirname "$0")/place.sh"
say() { echo "kvviz: $*"; }

sources=$(cd "$root/tests/cuda_stub" && cat build.py src/*.[ch] src/crt/*.h | cksum)
[ "$(cat "$dir/ready" 2>/dev/null)" != "$sources" ] || exit 0

rm -f "$dir/ready"
mkdir -p "$dir"
if [ ! -e "$dir/installed" ]; then
    free_mb=$(df -Pm "$dir" | awk 'NR == 2 { print $4 }')
    [ "$free_mb" -ge 2500 ] || { say "needs 2500 MB of free disk in $dir, found $free_mb MB" >&2; exit 1; }
    say "fetching torch $TORCH for CUDA (500 MB, unpacked 1.2 GB) into $dir"
    rm -rf "$site"
    # --no-deps: everything else comes from .venv, and each NVIDIA library that torch names is stubbed (4 GB saved)
    env -u PIP_CONSTRAINT PIP_USER=0 "$PY" -m pip install -q --disable-pip-version-check --no-deps --target "$site" \
        "torch==$TORCH" "nvidia-cuda-runtime>=13,<14" || { say "pip could not install it, see above" >&2; exit 1; }
    grep -q "^cuda.*'13" "$site/torch/version.py" || { say "the package index gave a torch without CUDA 13" >&2; exit 1; }
    touch "$dir/installed"
fi
say "compiling the stub libraries"
"$PY" "$root/tests/cuda_stub/build.py" "$site" > "$dir/build.log"
echo "$sources" > "$dir/ready"
"$root/tests/cuda_stub/run.sh" -c '
import os, torch
torch.empty(1, device="cuda")
print(f"kvviz: stub ready: torch {torch.__version__}, {torch.cuda.memory_reserved()} bytes reserved", flush=True)
os._exit(0)' || { rm -f "$dir/ready"; exit 1; }
