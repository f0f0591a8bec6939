# Sourced by setup.sh and run.sh: which Python, and where its stub lies. A Python of another release needs another torch.
TORCH=2.14.1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PY=${PY:-$root/.venv/bin/python}
python_version=$("$PY" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
dir=${KVVIZ_CUDA_STUB:-$HOME/.cache/kvviz-cuda-stub}/torch-$TORCH-python-$python_version
site=$dir/site
