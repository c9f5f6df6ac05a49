#!/usr/bin/env bash
# Installs what tests/parity compares with and the project itself does not need: DeepSpeed. The other peers come with
# PyTorch, TensorFlow and Horovod. Safe to run again; with nothing to do it takes a second.
#
#   bash tests/parity/install_peers.sh
#
# Settings, from the environment:
#   HVDTRAIN_VENV   folder of the virtual environment, made by docker/install.sh   (default: .venv in the project)
set -Eeuo pipefail

PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PYTHON=${HVDTRAIN_VENV:-$PROJECT/.venv}/bin/python
DEEPSPEED_VERSION=0.19.8
LOG=$(mktemp "${TMPDIR:-/tmp}/hvdtrain-peers.XXXXXX.log")

say() { printf 'install_peers: %s\n' "$*"; }

fail() { # fail WHAT: say what went wrong, with the end of the log
    printf 'install_peers: FAILED: %s\n' "$1" >&2
    tail -n 15 "$LOG" | sed 's/^/    /' >&2
    [ -s "$LOG" ] || rm -f "$LOG"
    exit 1
}

installed() { "$PYTHON" -c 'from importlib.metadata import version; print(version("deepspeed"))' 2>/dev/null || true; }

has_torch() { "$PYTHON" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; }

[ -x "$PYTHON" ] || fail "there is no $PYTHON: run docker/install.sh first"
if ! has_torch; then
    say "no torch in the environment, so no DeepSpeed: nothing to do"
elif [ "$(installed)" = "$DEEPSPEED_VERSION" ]; then
    say "DeepSpeed $DEEPSPEED_VERSION: there, nothing to do"
else
    say "DeepSpeed $DEEPSPEED_VERSION"
    # Without isolation its setup.py sees this environment's torch; isolated, pip would fetch another one to build with.
    # The constraints keep torch and NumPy as they are. No operator is compiled here: plain SGD needs none.
    DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "$PYTHON" -m pip install --no-input --no-build-isolation \
        -c "$PROJECT/docker/pins.txt" "deepspeed==$DEEPSPEED_VERSION" >"$LOG" 2>&1 </dev/null ||
        fail "pip install deepspeed==$DEEPSPEED_VERSION (all of it in $LOG)"
    say "  done"
fi
rm -f "$LOG"
