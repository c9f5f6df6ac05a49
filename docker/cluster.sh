#!/usr/bin/env bash
# A cluster on one machine: one head and some workers in containers, with real ssh between them.
#
#   docker/cluster.sh up [--workers N] [--slots S] [--no-build]
#                                                     build the image, start N workers (default: 2) of S ranks each (2);
#                                                     killed hosts come back
#   docker/cluster.sh run [--framework F] [-np N] [--job FILE] [--launcher L] [-- OPTION...]
#                                                     train on the workers; options after -- go to 'hvdtrain train'
#   docker/cluster.sh kill NAME                       end a host at once, such as worker2
#   docker/cluster.sh down                            remove hosts, network and keys; runs and the image stay
#
#   F   torch (default) or tensorflow
#   L   launch (default: 'hvdtrain launch'), horovodrun or mpirun
#   -np defaults to all slots; FILE is a name in the folder of jobs (default: digits.py)
#
# Settings, all from the environment:
#   HVDTRAIN_CLUSTER      name of the cluster, so that several can run (default: hvdtrain)
#   HVDTRAIN_IMAGE        name of the image                            (default: hvdtrain)
#   HVDTRAIN_RUNS         folder that every host sees as runs          (default: runs in the project)
#   HVDTRAIN_JOB_FOLDER   folder that every host sees as jobs          (default: examples in the project)
#   HVDTRAIN_CACHE        where install.sh keeps Horovod wheels; they are offered to the build
#   HVDTRAIN_FRAMEWORKS, TORCH_VERSION, TENSORFLOW_VERSION, PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, http_proxy, ...
#                         reach the build; so do docker/certs/*.crt and docker/wheels/
set -euo pipefail

DOCKER=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PROJECT=$(dirname "$DOCKER")
FILE=$DOCKER/docker-compose.yml
NAME=${HVDTRAIN_CLUSTER:-hvdtrain}
CACHE=${HVDTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hvdtrain}
WAIT_S=120
export HVDTRAIN_RUNS=${HVDTRAIN_RUNS:-$PROJECT/runs}
export HVDTRAIN_JOB_FOLDER=${HVDTRAIN_JOB_FOLDER:-$PROJECT/examples}

say() { printf 'cluster: %s\n' "$*"; }

fail() { # fail WHAT CURE
    printf 'cluster: error: %s. %s.\n' "$1" "$2" >&2
    exit 2
}

usage() { sed -n '/^#   docker/,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

find_compose() { # leave the words that start Compose, of either version, in COMPOSE
    if docker compose version >/dev/null 2>&1; then
        COMPOSE=(docker compose)
    elif command -v docker-compose >/dev/null; then
        COMPOSE=(docker-compose)
    else
        fail "there is neither 'docker compose' nor docker-compose" \
            "Install one, on Debian: apt-get install docker.io docker-compose"
    fi
    docker info >/dev/null 2>&1 || fail "no Docker engine answers" \
        "Start one, for example with: systemctl start docker"
}

compose() { "${COMPOSE[@]}" -p "$NAME" -f "$FILE" "$@"; }

on_head() { compose exec -T head "$@" </dev/null; }

check_number() { # check_number OPTION VALUE
    [[ $2 =~ ^[1-9][0-9]*$ ]] || fail "$1 must be a number of at least 1, got '$2'" "For example: $1 2"
}

# ---------------------------------------------------------------- up
build_image() {
    # A Horovod that install.sh has built here serves the image too, if its key fits.
    [ ! -d "$CACHE/wheels" ] || cp -ru "$CACHE/wheels/." "$DOCKER/wheels/"
    say "building the image (about 4 minutes the first time; 7 more where no Horovod wheel fits)"
    compose build head
    # What the new image has replaced; the layers that it shares stay.
    docker image prune --force --filter label=org.opencontainers.image.title=hvdtrain >/dev/null
}

choose_user() { # the hosts train as the caller, so that the runs are the caller's; never as root
    HVDTRAIN_USER_ID=$(id -u)
    mkdir -p "$HVDTRAIN_RUNS"
    if [ "$HVDTRAIN_USER_ID" -eq 0 ]; then
        HVDTRAIN_USER_ID=1000
        chown 1000:1000 "$HVDTRAIN_RUNS"
    fi
    export HVDTRAIN_USER_ID
}

wait_for_ssh() { # wait_for_ssh HOST...: until the head reaches each of them
    local host deadline=$((SECONDS + WAIT_S))
    for host; do
        until on_head ssh -o ConnectTimeout=3 "$host" true >/dev/null 2>&1; do
            if [ "$SECONDS" -ge "$deadline" ]; then
                compose ps >&2
                compose logs --tail 20 head "$host" >&2
                fail "$host did not answer ssh from the head within $WAIT_S s" "Its last lines stand above"
            fi
            sleep 0.5
        done
    done
}

up() {
    local workers=2 slots=2 build=1 hosts=() number
    while [ $# -gt 0 ]; do
        case $1 in
            --workers | --slots)
                check_number "$1" "${2:-}"
                if [ "$1" = --workers ]; then workers=$2; else slots=$2; fi
                shift 2 ;;
            --no-build) build='' && shift ;;
            *) fail "up does not know '$1'" "It takes --workers N, --slots S and --no-build" ;;
        esac
    done
    number=$(grep -c '^  worker[0-9]*:' "$FILE")
    [ "$workers" -le "$number" ] || fail "--workers must be at most $number, got $workers" \
        "Add a line for each further one to $FILE"
    for ((number = 1; number <= workers; number++)); do hosts+=("worker$number"); done
    choose_user
    [ -z "$build" ] || build_image
    compose up -d --no-build head "${hosts[@]}"
    wait_for_ssh head "${hosts[@]}"
    printf "%s slots=$slots\n" "${hosts[@]}" | compose exec -T head tee hostfile >/dev/null
    say "$workers workers of $slots ranks answer ssh from the head"
}

# ---------------------------------------------------------------- run
launch_words() { # launch_words LAUNCHER N: what comes before the program, one word a line
    case $1 in
        launch) printf '%s\n' hvdtrain launch -np "$2" --hostfile hostfile -- ;;
        horovodrun) printf '%s\n' horovodrun -np "$2" --hostfile hostfile ;;
        mpirun) printf '%s\n' mpirun -np "$2" --hostfile hostfile --bind-to none --map-by slot -x PATH ;;
        *) fail "--launcher must be launch, horovodrun or mpirun, got '$1'" "For example: --launcher mpirun" ;;
    esac
}

run() {
    local framework=torch ranks='' job=digits.py launcher=launch words code=0
    while [ $# -gt 0 ]; do
        case $1 in
            --) shift && break ;;
            --framework | -np | --job | --launcher)
                [ $# -ge 2 ] || fail "$1 needs a value" "Say 'docker/cluster.sh' alone for all options"
                case $1 in
                    --framework) framework=$2 ;;
                    -np) ranks=$2 ;;
                    --job) job=$2 ;;
                    --launcher) launcher=$2 ;;
                esac
                shift 2 ;;
            *) fail "run does not know '$1'" "Options of 'hvdtrain train' come after --" ;;
        esac
    done
    on_head test -e hostfile 2>/dev/null || fail "the cluster is not up" "Start it with: docker/cluster.sh up"
    # shellcheck disable=SC2016  # awk's own words
    [ -n "$ranks" ] || ranks=$(on_head awk -F= '{ n += $2 } END { print n }' hostfile)
    check_number -np "$ranks"
    words=$(launch_words "$launcher" "$ranks")
    local folder
    folder=runs/$(basename "$job" .py)-$framework-$(date +%Y%m%d-%H%M%S)
    mapfile -t words <<<"$words"
    words+=(hvdtrain train "/home/trainer/jobs/$job" --framework "$framework")
    [[ " $* " == *" --run-dir"* ]] || words+=(--run-dir "$folder")
    run_on_head "${words[@]}" "$@" || code=$?
    return "$code"
}

run_on_head() { # as on_head, and a signal to this script reaches the program: 'exec' would leave it running
    local code=0 signalled='' client
    set -m # a process group of its own, which Ctrl-C does not reach
    # shellcheck disable=SC2016  # expanded on the head
    compose exec -T head bash -c 'echo $$ >/tmp/launch.pid; exec "$@"' launch "$@" </dev/null &
    client=$!
    set +m
    trap 'signalled=1; on_head bash -c "kill -INT \$(cat /tmp/launch.pid)"' INT TERM
    wait "$client" || code=$?
    while [ -n "$signalled" ]; do
        signalled=''
        wait "$client" || code=$?
    done
    trap - INT TERM
    return "$code"
}

# ---------------------------------------------------------------- kill, down
kill_host() {
    [ $# -eq 1 ] || fail "kill takes the name of one host, got ${*:-none}" "For example: docker/cluster.sh kill worker2"
    compose kill -s KILL "$1"
}

down() {
    [ $# -eq 0 ] || fail "down takes no argument, got '$*'" "Leave it out"
    compose down --volumes --remove-orphans --timeout 1
}

command=${1:-}
[ $# -eq 0 ] || shift
case $command in
    up | run | down) find_compose && "$command" "$@" ;;
    kill) find_compose && kill_host "$@" ;;
    '' | help | -h | --help) usage ;;
    *) fail "there is no command '$command'" "Choose one of up, run, kill, down" ;;
esac
