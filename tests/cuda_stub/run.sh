#!/usr/bin/env bash
# Runs Python on the stub CUDA runtime: run.sh script.py …, run.sh -m module …, run.sh -c '…'. README.md lists the variables.
set -euo pipefail
source "$(dirname "$0")/place.sh"
[ -e "$dir/ready" ] || { echo "kvviz: no CUDA stub in $dir; run make test-cuda, or tests/cuda_stub/setup.sh" >&2; exit 1; }
# Torch's CUDA build shadows the one of .venv; everything else comes from there. The NVML check leaves CUDA unstarted,
# so that a process which has asked torch.cuda.is_available() can still fork.
export PYTHONPATH=$site:$root TORCH_CPP_LOG_LEVEL=${TORCH_CPP_LOG_LEVEL:-ERROR} PYTORCH_NVML_BASED_CUDA_CHECK=1
export KVVIZ_ON_CUDA_STUB=$dir
exec "$PY" "$@"
