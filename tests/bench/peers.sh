#!/usr/bin/env bash
# Times hvdtrain beside its peers on this machine, interleaved; see tests/bench/peers.py. Needs docker/install.sh first.
#
#   bash tests/bench/peers.sh --framework torch --sizes tiny,small,medium --accumulation 1,4
#   bash tests/bench/peers.sh --framework tensorflow --job mlp --sizes tiny,small
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bash tests/parity/install_peers.sh >&2
exec "${HVDTRAIN_VENV:-.venv}/bin/python" tests/bench/peers.py "$@"
