"""Many runs of the small job in one launch, because importing TensorFlow costs 5 s a rank.

    mpirun -np 2 python tests/faults/runs.py torch RUNS.json

The file lists ``[run folder, options, environment]`` of each run; its command line is that of ``hvdtrain train``.
What a run refuses is told, and the next one follows; any other failure ends the launch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hvdtrain.cli.main import app
from hvdtrain.communicator import connect
from hvdtrain.errors import HvdTrainError

JOB = Path(__file__).parent / "jobs" / "small.py"


def main(framework: str, runs: Path) -> None:
    """Make every run of the file."""
    is_root = connect().topology.is_root
    for folder, options, environment in json.loads(runs.read_text()):
        os.environ.update(environment)
        try:
            app(
                ["train", str(JOB), "--framework", framework, "--run-dir", folder, *options],
                standalone_mode=False,
            )
        except HvdTrainError as error:
            if not error.is_agreed:
                raise
            if is_root:
                sys.stderr.write(f"{folder}: error: {error}\n")
        finally:
            for name in environment:
                del os.environ[name]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
