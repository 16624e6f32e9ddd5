#!/bin/bash
# Starts the run ledger on Kubernetes. Call it from the project's folder; the keys are made once and stay here.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
keys="$here/keys/ledger"
[ -e "$keys"/ledger-trainer.key ] || python3 launch.py keygen "$keys" --role trainer --name ledger-trainer
[ -e "$keys"/ledger-rollout.key ] || python3 launch.py keygen "$keys" --role rollout --name ledger-rollout
secret() {
    kubectl create secret generic "$@" --namespace default --dry-run=client --output=yaml |
        kubectl apply --filename=-
}
admitted=()
for grant in "$keys"/workers/*.json; do
    admitted+=(--from-file="$grant")
done
secret ledger-server-key --from-file="$keys/server.key"
secret ledger-admitted "${admitted[@]}"
secret ledger-trainer-key --from-file=worker.key="$keys/ledger-trainer.key"
secret ledger-rollout-key --from-file=worker.key="$keys/ledger-rollout.key"
kubectl apply --filename="$here/staleflow.yaml"
