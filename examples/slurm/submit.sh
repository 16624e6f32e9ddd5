#!/bin/bash
# Submits the run ledger. Call it from the project's folder, which all nodes see; call it again to go on with the run.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python="${STALEFLOW_PYTHON:-.venv/bin/python}"
[ -e /shared/staleflow/keys/ledger/ledger-trainer.key ] || "$python" launch.py keygen /shared/staleflow/keys/ledger --role trainer --name ledger-trainer
[ -e /shared/staleflow/keys/ledger/ledger-rollout.key ] || "$python" launch.py keygen /shared/staleflow/keys/ledger --role rollout --name ledger-rollout
"$python" launch.py check examples/cluster.yaml \
    run.dir=/shared/staleflow/runs \
    controller.bind=tcp://0.0.0.0:29500 \
    controller.keys=/shared/staleflow/keys/ledger \
    trainer.local=false \
    rollout.instances=0 \
    logging.console=plain
controller=$(sbatch --parsable "$here/controller.sbatch")
controller=${controller%%;*}  # where Slurm has several clusters, `;` and the name of one follow
after=(--dependency="after:$controller" --export="ALL,CONTROLLER_JOB=$controller")
sbatch "${after[@]}" "$here/trainer.sbatch"
sbatch "${after[@]}" --array=1-8 "$here/rollout.sbatch"
