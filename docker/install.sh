#!/usr/bin/env bash
# The one recipe that takes a bare Debian 12 or Ubuntu 22.04 (or later) to a working hvdtrain.
# People, CI and the Docker image all run this file; what it does is printed step by step.
#
#   bash docker/install.sh              everything: system packages, .venv, Horovod, hvdtrain
#   bash docker/install.sh --system     system packages alone (an image layer of its own)
#   bash docker/install.sh --python     the virtual environment and Horovod alone
#
# Settings, all from the environment:
#   HVDTRAIN_FRAMEWORKS   torch,tensorflow (default), torch, or tensorflow
#   HVDTRAIN_VENV         folder of the virtual environment      (default: .venv in the project)
#   HVDTRAIN_PYTHON       interpreter that the environment uses  (default: python3)
#   HVDTRAIN_CACHE        where built Horovod wheels are kept    (default: ~/.cache/hvdtrain)
#   HVDTRAIN_JOBS         parallel compiler processes            (default: one per core)
#   PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_CERT, http_proxy, ...  reach pip and apt untouched
set -Eeuo pipefail

PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
FRAMEWORKS=${HVDTRAIN_FRAMEWORKS:-torch,tensorflow}
VENV=${HVDTRAIN_VENV:-$PROJECT/.venv}
PYTHON=${HVDTRAIN_PYTHON:-python3}
CACHE=${HVDTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hvdtrain}
JOBS=${HVDTRAIN_JOBS:-$(nproc)}
PINS=$PROJECT/docker/pins.txt
HOROVOD_VERSION=0.28.1
LOG=$(mktemp "${TMPDIR:-/tmp}/hvdtrain-install.XXXXXX.log")
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/hvdtrain-build.XXXXXX")
trap 'rm -rf "$SCRATCH"' EXIT

say() { printf 'install: %s\n' "$*"; }

fail() { # fail WHAT CURE: name the step, show why, say what to do
    printf 'install: FAILED: %s\n' "$1" >&2
    if [ -s "$LOG" ]; then
        printf 'install: its last lines (all of it in %s):\n' "$LOG" >&2
        tail -n 15 "$LOG" | sed 's/^/    /' >&2
    fi
    printf 'install: what to do: %s\n' "$2" >&2
    exit 1
}

trap 'fail "line $LINENO of install.sh: $BASH_COMMAND" "this is a fault of the recipe: report it with that line"' ERR

step() { # step WHAT CURE COMMAND...: run one command into the log
    local what=$1 cure=$2 began=$SECONDS
    shift 2
    say "$what"
    "$@" >"$LOG" 2>&1 </dev/null || fail "$what" "$cure"
    say "  done in $((SECONDS - began)) s"
}

has_framework() { case ",$FRAMEWORKS," in *",$1,"*) true ;; *) false ;; esac }

check_settings() {
    local name
    for name in ${FRAMEWORKS//,/ }; do
        case $name in
            torch | tensorflow) ;;
            *) fail "HVDTRAIN_FRAMEWORKS may name torch and tensorflow, got '$FRAMEWORKS'" \
                "set it to torch, tensorflow or torch,tensorflow" ;;
        esac
    done
    [ -n "${FRAMEWORKS//,/}" ] || fail "HVDTRAIN_FRAMEWORKS is empty" "unset it, or name a framework"
}

# ---------------------------------------------------------------- system packages
missing_packages() { # one Debian package name per thing that is not there
    command -v g++ >/dev/null || echo g++
    command -v make >/dev/null || echo make
    command -v cmake >/dev/null || echo cmake
    command -v ssh >/dev/null || echo openssh-client
    command -v mpirun >/dev/null || echo openmpi-bin
    command -v mpicxx >/dev/null || echo libopenmpi-dev
    command -v "$PYTHON" >/dev/null || echo python3
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    "$PYTHON" - 2>/dev/null <<'PY' || echo python3-dev
import os, sysconfig
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
PY
    return 0
}

install_system() {
    local packages as_root=()
    packages=$(missing_packages)
    if [ -z "$packages" ]; then
        say "system packages: all present, nothing to do"
        return
    fi
    command -v apt-get >/dev/null || fail "these are missing: ${packages//$'\n'/ }" \
        "this system has no apt-get: install them with its own package manager, then run this again"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "these are missing: ${packages//$'\n'/ }" \
            "ask an administrator for: apt-get install ${packages//$'\n'/ }"
        as_root=(sudo -E)
    fi
    step "apt-get update" "check the network, the proxy variables and /etc/apt/sources.list" \
        "${as_root[@]}" apt-get update
    # shellcheck disable=SC2086  # one word per package is meant
    step "apt-get install ${packages//$'\n'/ }" "run that line by hand and read what it says" \
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends $packages
}

# ---------------------------------------------------------------- Python packages
pip_install() { "$VENV/bin/python" -m pip install --no-input -c "$PINS" "$@"; }

version_of() { "$VENV/bin/python" -c 'import sys; from importlib.metadata import version
print(version(sys.argv[1]))' "$1" 2>/dev/null || true; }

pinned() { sed -n "s/^$1==//p" "$PINS"; }

install_packages() {
    local cure="check the network, PIP_INDEX_URL and PIP_CERT; then run this again"
    if [ ! -x "$VENV/bin/python" ]; then
        step "virtual environment $VENV" "install the python3-venv package" "$PYTHON" -m venv "$VENV"
    fi
    # Horovod's setup.py imports pkg_resources, which setuptools drops at 81.
    step "build tools" "$cure" pip_install "setuptools<81" wheel packaging
    if has_framework torch && [ -z "$(version_of torch)" ]; then
        step "torch $(pinned torch) (a CPU build where the index offers one)" "$cure" \
            pip_install "torch==$(pinned torch)"
    fi
    if has_framework tensorflow && [ -z "$(version_of tensorflow-cpu)" ]; then
        step "tensorflow-cpu $(pinned tensorflow-cpu)" "$cure" \
            pip_install "tensorflow-cpu==$(pinned tensorflow-cpu)"
    fi
    step "hvdtrain and what it needs" "$cure" pip_install -e "$PROJECT[dev]" \
        cloudpickle psutil pyyaml cffi
}

# ---------------------------------------------------------------- Horovod
wheel_key() { # everything that the compiled code depends on
    {
        echo "horovod $HOROVOD_VERSION recipe 1"
        "$VENV/bin/python" -c 'import sys, platform
print(sys.implementation.cache_tag, platform.machine(), platform.libc_ver())'
        has_framework torch && version_of torch
        has_framework tensorflow && version_of tensorflow-cpu
        mpirun --version | head -n 1
        mpicxx --version | head -n 1
        env | grep '^HOROVOD_' | sort || true
    } | sha256sum | cut -c 1-16
}

write_compiler_wrapper() {
    cat >"$SCRATCH/cxx" <<'WRAPPER'
#!/usr/bin/env bash
# Two repairs for Horovod 0.28.1 against today's frameworks:
# torch's headers need C++17 where Horovod asks for 11 or 14; and TensorFlow's wheel no longer ships
# the XLA headers that xla_mpi_ops.cc includes, so the macro that turns that file on is taken away.
args=()
for arg in "$@"; do
    case $arg in
        -std=c++11 | -std=c++14 | -std=gnu++11 | -std=gnu++14) arg=-std=c++17 ;;
        *xla_mpi_ops.cc) without_xla=-UTENSORFLOW_VERSION ;;
    esac
    args+=("$arg")
done
exec g++ "${args[@]}" ${without_xla:-}
WRAPPER
    chmod +x "$SCRATCH/cxx"
}

build_horovod() { # build_horovod FOLDER: leave one wheel in FOLDER
    local settings=(HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MXNET=1)
    has_framework torch && settings+=(HOROVOD_WITH_PYTORCH=1) || settings+=(HOROVOD_WITHOUT_PYTORCH=1)
    has_framework tensorflow && settings+=(HOROVOD_WITH_TENSORFLOW=1) ||
        settings+=(HOROVOD_WITHOUT_TENSORFLOW=1)
    write_compiler_wrapper
    # CMake 4 refuses projects that ask for less than 3.5, as Horovod's third-party code does.
    PATH="$VENV/bin:$PATH" env "${settings[@]}" CXX="$SCRATCH/cxx" MAKEFLAGS="-j$JOBS" \
        CMAKE_POLICY_VERSION_MINIMUM=3.5 \
        "$VENV/bin/python" -m pip wheel --no-input --no-build-isolation --no-deps --no-binary horovod \
        --wheel-dir "$1" "horovod==$HOROVOD_VERSION"
}

install_horovod() {
    local folder wheel
    folder=$CACHE/wheels/$(wheel_key)
    wheel=$(compgen -G "$folder/horovod-*.whl" || true)
    if [ -z "$wheel" ]; then
        step "Horovod $HOROVOD_VERSION from source for $FRAMEWORKS (about 7 minutes on two cores)" \
            "read $LOG from its first 'error:'; the compiler and MPI headers are the usual cause" \
            build_horovod "$SCRATCH/wheel"
        mkdir -p "$folder"
        wheel=$folder/$(basename "$SCRATCH"/wheel/horovod-*.whl)
        # Copy under another name, then rename: a wheel in the cache is always whole.
        cp "$SCRATCH"/wheel/horovod-*.whl "$wheel.part-$$"
        mv "$wheel.part-$$" "$wheel"
    else
        say "Horovod $HOROVOD_VERSION: wheel found in $folder"
    fi
    step "Horovod into the environment" "remove $folder and run this again" \
        "$VENV/bin/python" -m pip install --no-input --no-deps --force-reinstall "$wheel"
}

prove_horovod() { # the build counts only when each binding loads and has MPI
    local name
    for name in ${FRAMEWORKS//,/ }; do
        step "horovod.$name loads and was built with MPI" "remove $CACHE/wheels and run this again" \
            env TF_CPP_MIN_LOG_LEVEL=2 "$VENV/bin/python" -c \
            "import horovod.$name as hvd; assert hvd.mpi_built(), 'built without MPI'"
    done
}

# ---------------------------------------------------------------- the whole
stamp() { # what a finished environment was made from
    { cat "$PINS" "$PROJECT/setup.py" "$PROJECT/docker/install.sh"; echo "$PROJECT $FRAMEWORKS"; wheel_key; } |
        sha256sum | cut -c 1-16
}

install_python() {
    local done_file=$VENV/.hvdtrain-installed
    if [ -f "$done_file" ] && [ "$(cat "$done_file")" = "$(stamp 2>/dev/null)" ]; then
        say "environment $VENV: complete, nothing to do"
        return
    fi
    install_packages
    install_horovod
    prove_horovod
    stamp >"$done_file"
    say "environment $VENV: ready; '. $VENV/bin/activate' puts hvdtrain on the PATH"
}

check_settings
case ${1:-} in
    "") install_system && install_python ;;
    --system) install_system ;;
    --python) install_python ;;
    *) fail "unknown argument '$1'" "use no argument, --system or --python" ;;
esac
rm -f "$LOG"
