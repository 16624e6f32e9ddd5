#!/bin/bash
# Starts the run @@{name} on Kubernetes. Call it from the project's folder; the keys are made once and stay here.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
keys="$here/keys/@@{name}"
@@{keys_made}
secret() {
    kubectl create secret generic "$@" --namespace @@{namespace} --dry-run=client --output=yaml |
        kubectl apply --filename=-
}
admitted=()
for grant in "$keys"/workers/*.json; do
    admitted+=(--from-file="$grant")
done
secret @@{name}-server-key --from-file="$keys/server.key"
secret @@{name}-admitted "${admitted[@]}"
@@{secrets}
kubectl apply --filename="$here/staleflow.yaml"
