#!/bin/bash
# Submits the run @@{name}. Call it from the project's folder, which all nodes see; call it again to go on with the run.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python="${STALEFLOW_PYTHON:-.venv/bin/python}"
@@{keys_made}
"$python" launch.py check @@{config} \
    @@{overrides}
controller=$(sbatch --parsable "$here/controller.sbatch")
controller=${controller%%;*}  # where Slurm has several clusters, `;` and the name of one follow
after=(--dependency="after:$controller" --export="ALL,CONTROLLER_JOB=$controller")
@@{jobs}
