#!/usr/bin/env bash
# Makes .venv, or brings it up to date when what it is made from has changed. Otherwise does nothing, at once.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "kvviz: $*"; }
stop() { echo "kvviz: $*" >&2; exit 1; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }
identity() { "$1" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null; }
another_chosen() {
    [ -n "${KVVIZ_PYTHON:-}" ] && [ "$(identity "$KVVIZ_PYTHON")" != "$(identity .venv/bin/python)" ]
}

# Why the .venv that is here cannot be used, if so: moved, its Python gone or too old, or another one chosen
unusable() {
    [ "$(head -n 1 $stamp 2>/dev/null || pwd)" = "$(pwd)" ] || echo "it was made in another folder"
    .venv/bin/python -m pip --version >/dev/null 2>&1 && new_enough .venv/bin/python || echo "it does not work"
    ! another_chosen || echo "KVVIZ_PYTHON is another Python"
}

stamp=.venv/kvviz-stamp
log=.venv/install.log
wanted=$(pwd; cksum pyproject.toml constraints.txt scripts/bootstrap.sh)
if [ -x .venv/bin/python ] && [ "$(cat $stamp 2>/dev/null)" = "$wanted" ] && ! another_chosen; then
    exit 0
fi

# --- a Python to build on ---------------------------------------------------------------------------------------
python=
if [ -n "${KVVIZ_PYTHON:-}" ]; then
    command -v "$KVVIZ_PYTHON" >/dev/null || stop "KVVIZ_PYTHON is $KVVIZ_PYTHON, but there is no such program"
    new_enough "$KVVIZ_PYTHON" || stop "KVVIZ_PYTHON is $KVVIZ_PYTHON, but kvviz needs Python 3.10 or newer"
    python=$KVVIZ_PYTHON
else
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
        if command -v "$candidate" >/dev/null && new_enough "$candidate"; then python=$candidate; break; fi
    done
    if [ -z "$python" ]; then
        found=$(python3 --version 2>/dev/null || echo "no python3")
        stop "needs Python 3.10 or newer, found $found; install one, or name it with KVVIZ_PYTHON=/path/to/python"
    fi
fi
version=$("$python" -c 'import platform; print(platform.python_version())')
"$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
    stop "Python $version has no venv module; on Debian and Ubuntu: apt install python3-venv"
[ -w . ] || stop "cannot write to $(pwd)"

# --- the environment --------------------------------------------------------------------------------------------
if [ -e .venv ]; then
    why=$(unusable)
    if [ -n "$why" ]; then
        say "making .venv anew: ${why%%$'\n'*}"
        rm -rf .venv
    fi
fi
if [ ! -e .venv ]; then
    need_mb=3000
    free_mb=$(df -Pm . | awk 'NR == 2 { print $4 }')
    [ "$free_mb" -ge $need_mb ] || stop "needs about $need_mb MB of free disk in $(pwd), found $free_mb MB"
    say "creating .venv with Python $version"
    "$python" -m venv .venv || stop "$python -m venv failed, see above"
else
    say "updating .venv"
fi
rm -f $stamp

# pip's index, proxy and certificates are the user's business; options for other installs (PIP_USER, PIP_TARGET …) are not
for name in $(compgen -e PIP_); do
    case $name in
        PIP_*INDEX* | PIP_FIND_LINKS | PIP_*CERT | PIP_PROXY | PIP_TRUSTED_HOST | PIP_*TIMEOUT | PIP_RETRIES) ;;
        PIP_*CACHE_DIR | PIP_CONFIG_FILE | PIP_KEYRING_PROVIDER) ;;
        *) unset "$name" ;;
    esac
done
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

# Of pip's several hundred lines, show those that take time or go wrong
progress() {
    while IFS= read -r line; do
        case $line in
            *Downloading*" MB)"*)
                size=${line##*\(}
                [ "${size%%.*}" -lt 10 ] || say "  downloading ${line##*Downloading }" ;;
            *Downloading*" GB)"*) say "  downloading ${line##*Downloading }" ;;
            "Installing collected packages:"*) read -ra names <<< "${line#*:}"; say "  unpacking ${#names[@]} packages, a minute or two" ;;
            "WARNING: Retrying"*) say "  the package index does not answer, trying again" ;;
        esac
    done
}
say "installing packages (the first time takes some minutes)"
began=$SECONDS
if ! .venv/bin/python -m pip install --progress-bar off -c constraints.txt -e '.[notebooks,test]' 2>&1 |
    tee $log | progress; then
    if grep -q "No space left" $log; then
        stop "the disk is full: free some space, then run the same command again"
    elif grep -qiE "NewConnectionError|Temporary failure in name resolution|Name or service not known|ConnectTimeout|Max retries exceeded|Network is unreachable|Connection (refused|reset)" $log; then
        stop "the package index cannot be reached: check the network (or PIP_INDEX_URL), then run the same command again; details in $log"
    elif grep -q "No matching distribution found for torch" $log; then
        stop "there is no build of the pinned torch for Python $version on this machine: choose another Python with KVVIZ_PYTHON"
    fi
    stop "pip failed: $(grep -E 'ERROR|error:' $log | tail -n 1); details in $log"
fi
echo "$wanted" > $stamp
say "environment ready ($((SECONDS - began)) s)"
