#!/usr/bin/env bash
# The one command: installs, lints, types, tests. It goes through all stages, prints a table, and ends with the exit
# code of the first stage that failed. The last line is the total over all tests.
#
#   bash tests/run.sh                    every stage
#   bash tests/run.sh unit contract      the install and these stages
#
# Settings, all from the environment:
#   HVDTRAIN_FRAMEWORKS, HVDTRAIN_VENV   as in docker/install.sh
#   HVDTRAIN_REQUIRE                     what must be there instead of being skipped (default: the frameworks)
#   HVDTRAIN_TEST_WORKERS                how many tests run beside each other (default: 2, or 3 where they wait more; 0: none)
#   HVDTRAIN_FULL=1                      the long form of what is shortened here, such as every way to resume each kill
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
FRAMEWORKS=${HVDTRAIN_FRAMEWORKS:-torch,tensorflow}
export HVDTRAIN_REQUIRE=${HVDTRAIN_REQUIRE-$FRAMEWORKS}
BIN=${HVDTRAIN_VENV:-.venv}/bin
# Most of what a ring takes is waiting: for launchers, for ranks to end, for time limits.
BESIDE=(-n "${HVDTRAIN_TEST_WORKERS:-2}")
BESIDE_MORE=(-n "${HVDTRAIN_TEST_WORKERS:-3}")
FOLDERS=(parallel examples)
for name in parity faults cluster bench; do # rings that may come later
    [ -d "tests/$name" ] && FOLDERS+=("$name")
done
STAGES=(lint format types doctests unit contract "${FOLDERS[@]}")
CHOSEN=("$@")
REPORTS=$(mktemp -d "${TMPDIR:-/tmp}/hvdtrain-tests.XXXXXX")
trap 'rm -rf "$REPORTS"' EXIT
TABLE=()
FIRST_FAILURE=0

for name in ${CHOSEN[@]+"${CHOSEN[@]}"}; do
    if [[ " ${STAGES[*]} " != *" $name "* ]]; then
        echo "run.sh: there is no stage '$name', expected some of: ${STAGES[*]}" >&2
        exit 2
    fi
done

is_chosen() { [ ${#CHOSEN[@]} -eq 0 ] || [[ " ${CHOSEN[*]} " == *" $1 "* ]]; }

stage() { # stage NAME COMMAND...: run one stage and remember how it went
    local name=$1 began=$SECONDS code=0 result=passed
    shift
    printf '\n=== %s: %s\n' "$name" "$*"
    "$@" </dev/null || code=$?
    if [ "$code" -ne 0 ]; then
        result="FAILED ($code)"
        [ "$FIRST_FAILURE" -ne 0 ] || FIRST_FAILURE=$code
    fi
    TABLE+=("$(printf '%-22s %6d s  %s' "$name" "$((SECONDS - began))" "$result")")
    return "$code"
}

pytest_stage() { # pytest_stage NAME ARGUMENTS...: a stage whose tests count in the total
    local name=$1 report=$REPORTS/$1.xml
    shift
    stage "$name" "$BIN/python" -m pytest -q "$@" --junitxml="$report"
    echo "$? $report" >>"$REPORTS/stages"
}

totals() { # totals: one line; a stage that failed without a failed test counts as one failure
    python3 - "$REPORTS/stages" <<'PY'
import sys
from pathlib import Path
from xml.etree import ElementTree

passed = failed = skipped = 0
stages = Path(sys.argv[1])
for line in stages.read_text().splitlines() if stages.exists() else ():
    code, report = line.split(" ", 1)
    count = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    if Path(report).exists():
        suite = ElementTree.parse(report).getroot().find("testsuite")
        count = {name: int(suite.get(name)) for name in count}
    wrong = count["failures"] + count["errors"]
    passed += count["tests"] - wrong - count["skipped"]
    failed += wrong or int(code != "0")
    skipped += count["skipped"]
print(f"{passed} passed, {failed} failed, {skipped} skipped")
PY
}

stage install bash docker/install.sh
if [[ " ${FOLDERS[*]} " == *" parity "* ]] && is_chosen parity; then
    stage peers bash tests/parity/install_peers.sh
fi
is_chosen lint && stage lint "$BIN/ruff" check
is_chosen format && stage format "$BIN/ruff" format --check
is_chosen types && stage types "$BIN/python" -m mypy
is_chosen doctests && pytest_stage doctests --doctest-modules hvdtrain \
    --ignore=hvdtrain/torch_adapter --ignore=hvdtrain/tensorflow_adapter
is_chosen unit && pytest_stage unit tests/unit "${BESIDE[@]}"
if is_chosen contract; then
    for framework in ${FRAMEWORKS//,/ }; do
        pytest_stage "contract-$framework" tests/contract --adapter "$framework"
    done
fi
for name in "${FOLDERS[@]}"; do
    case $name in
        cluster) how=() ;; # its tests share one engine and its hosts
        parallel | parity) how=("${BESIDE_MORE[@]}") ;;
        *) how=("${BESIDE[@]}") ;;
    esac
    is_chosen "$name" && pytest_stage "$name" "tests/$name" ${how[@]+"${how[@]}"}
done

printf '\n=== stages\n'
printf '%s\n' "${TABLE[@]}"
totals
exit "$FIRST_FAILURE"
