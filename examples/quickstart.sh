#!/usr/bin/env bash
# From a bare machine to a result: installs everything, trains the same job with both frameworks on two ranks
# started by horovodrun, and prints both results.
#
#   bash examples/quickstart.sh [FOLDER]     runs go to FOLDER, a new folder under runs/ when left out
set -euo pipefail

PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${HVDTRAIN_VENV:-$PROJECT/.venv}
RUNS=${1:-$PROJECT/runs/quickstart-$(date +%Y%m%d-%H%M%S)}
FRAMEWORKS=${HVDTRAIN_FRAMEWORKS:-torch,tensorflow}

bash "$PROJECT/docker/install.sh"
export PATH="$VENV/bin:$PATH"
mkdir -p "$RUNS"

for framework in ${FRAMEWORKS//,/ }; do
    printf '\n== digits with %s on two ranks; the launcher'"'"'s output is in %s.log\n' "$framework" "$RUNS/$framework"
    if ! horovodrun -np 2 hvdtrain train "$PROJECT/examples/digits.py" \
        --framework "$framework" --run-dir "$RUNS/$framework" >"$RUNS/$framework.log" 2>&1; then
        tail -n 30 "$RUNS/$framework.log" >&2
        printf 'quickstart: training with %s failed; its last lines stand above\n' "$framework" >&2
        exit 1
    fi
done

python - "$RUNS" "${FRAMEWORKS//,/ }" <<'PY'
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

runs, frameworks = Path(sys.argv[1]), sys.argv[2].split()
table = Table("framework", "ranks", "eval accuracy", "eval loss", "samples/s", title="digits")
table.add_column("run folder", overflow="fold")
for name in frameworks:
    summary = json.loads((runs / name / "summary.json").read_text())
    table.add_row(
        name,
        str(summary["size"]),
        f"{summary['eval']['accuracy']:.4f}",
        f"{summary['eval']['loss']:.4f}",
        f"{summary['samples_per_s']:,.0f}",
        str(runs / name),
    )
Console(width=100).print(table)
PY
