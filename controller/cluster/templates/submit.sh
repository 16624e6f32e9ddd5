#!/bin/bash
# Submits the run @@{name}. Call it from the project's folder, which all nodes see; call it again to go on with the run.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python="${STALEFLOW_PYTHON:-.venv/bin/python}"
if [ ! -d @@{keys} ]; then
    "$python" launch.py keygen @@{keys} --role trainer --name @@{name}-trainer
    "$python" launch.py keygen @@{keys} --role rollout --name @@{name}-rollout
fi
@@{agent_key}
"$python" launch.py check @@{config} \
    @@{overrides}
controller=$(sbatch --parsable "$here/controller.sbatch")
after=(--dependency="after:$controller" --export="ALL,CONTROLLER_JOB=$controller")
sbatch "${after[@]}" "$here/trainer.sbatch"
sbatch "${after[@]}" --array=1-@@{instances} "$here/rollout.sbatch"
@@{agent_job}
