"""The manifests of a run on Kubernetes: volume, configuration, services, and a job for each role.

Invariants: they hold no secret; an API server accepts every name in them.
"""

import json
import os.path
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.cluster.names import require_entries, require_kubernetes_names
from controller.cluster.plan import (
    RENDEZVOUS_PORT,
    RESTARTS,
    agents,
    key_of,
    ranks_per_node,
    roles,
    run_root,
    told,
)
from controller.config.models import Config
from protocol.errors import ConfigError

PROBE_S = 5
TERMINATION_S = 120  # time for a last checkpoint
TOLD_TO_END = 143  # exit code of a container that was, as of a program that does not heed SIGTERM
MOST_APPLIED_BYTES = 255 << 10  # `kubectl apply` keeps an object in its annotations, which may have 256 KiB
Manifest = dict[str, Any]


def manifests_of(config: Config, path: Path, overrides: Sequence[str]) -> list[Manifest]:
    """The manifests in the order of their application; `path` is the configuration file.

    Raises: ConfigError if Kubernetes does not accept a name, ranks do not spread evenly over nodes, or a file
    cannot be read.
    """
    require_kubernetes_names(config)
    beside = _code_beside(config, path)
    jobs = {"trainer": _trainer, "rollout": _rollout, "agent": _agent}
    return [
        _volume_claim(config),
        _config_map(config, [path, *beside]),
        _service(config, "controller", config.cluster.port, is_headless=False),
        _service(config, "trainer", RENDEZVOUS_PORT, is_headless=True),
        _controller(config, path.name, [_in_the_pod(word, beside) for word in overrides]),
        *(jobs[role](config) for role in roles(config)),
    ]


def _meta(config: Config, part: str) -> Manifest:
    name = f"{config.run.name}-{part}"
    return {"name": name, "namespace": config.cluster.namespace, "labels": _labels(config, part)}


def _labels(config: Config, part: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "staleflow",
        "app.kubernetes.io/instance": config.run.name,
        "app.kubernetes.io/component": part,
    }


def _volume_claim(config: Config) -> Manifest:
    spec: Manifest = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": f"{config.cluster.storage_gb}Gi"}},
    }
    if config.cluster.storage_class:
        spec["storageClassName"] = config.cluster.storage_class
    kind = "PersistentVolumeClaim"
    return {"apiVersion": "v1", "kind": kind, "metadata": _meta(config, "shared"), "spec": spec}


def _config_map(config: Config, files: Sequence[Path]) -> Manifest:
    require_entries(files)
    data = {file.name: _text(file) for file in files}
    made: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(config, "config")}
    made["data"] = data
    if (size := _applied_bytes(made)) > MOST_APPLIED_BYTES:
        largest = max(files, key=lambda file: len(data[file.name]))
        raise ConfigError(
            f"The configuration and the Python files beside it would be a ConfigMap of {size:,} bytes, most "
            f"of them of {largest}; expected at most {MOST_APPLIED_BYTES:,}, as `kubectl apply` refuses "
            "more. Put the large file into the image or the shared folder, and name it there."
        )
    return made


def _applied_bytes(manifest: Manifest) -> int:
    """Size of the JSON that kubectl makes of a manifest: it writes each of `<>&` with six letters."""
    text = json.dumps(manifest, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode()) + 5 * sum(map(text.count, "<>&"))


def _text(file: Path) -> str:
    """Raises: ConfigError."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file} becomes an entry of a ConfigMap, and is not UTF-8: {error}. Save the file as UTF-8."
        ) from error


def _code_beside(config: Config, path: Path) -> list[Path]:
    """The Python files in the folder of the configuration that its keys name."""
    folder = path.parent.resolve()
    named = {text.rpartition(":")[0] if ".py:" in text else text for text in _texts(config.model_dump())}
    files = [Path(text) for text in sorted(named) if text.endswith(".py") and os.path.isfile(text)]
    return [file for file in files if file.parent.resolve() == folder]


def _texts(tree: object) -> Iterator[str]:
    """Every text in nested dictionaries and sequences."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _texts(value)
    elif isinstance(tree, Sequence):
        for value in tree:
            yield from _texts(value)


def _in_the_pod(override: str, beside: Sequence[Path]) -> str:
    """The override as the pod needs it: code beside the configuration is named without its folder."""
    key, _, value = override.partition("=")
    file, separator, name = value.rpartition(":")
    travels = separator and Path(file).expanduser().resolve() in {one.resolve() for one in beside}
    return f"{key}={Path(file).name}:{name}" if travels else override


def _service(config: Config, part: str, port: int, *, is_headless: bool) -> Manifest:
    spec: Manifest = {"selector": _labels(config, part), "ports": [{"name": part, "port": port}]}
    if is_headless:  # ranks find each other by their pods' names, before the pods are ready
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _meta(config, part), "spec": spec}


def _controller(config: Config, file: str, overrides: Sequence[str]) -> Manifest:
    secrets = [
        {"secret": {"name": f"{config.run.name}-server-key"}},
        {
            "secret": {
                "name": f"{config.run.name}-admitted",
                "items": [
                    {"key": f"{name}.json", "path": f"workers/{name}.json"}
                    for name in (key_of(config, role) for role in roles(config))
                ],
                "optional": True,  # a key that was removed is revoked
            }
        },
    ]
    words = shlex.join(["python", "launch.py", "run", f"/config/{file}", *told(config, "/keys", overrides)])
    # killed: a run that ends in order sends its workers away, and the next pod's would have none
    words = _restartable(words.replace("$", "$$"), by="KILL")  # Kubernetes turns `$$` into `$`
    pod = _pod(config, "controller", words, keys={"projected": {"sources": secrets, "defaultMode": 0o400}})
    container = pod["containers"][0]
    # workers need a ready service: the file exists exactly while the controller listens
    listens = ["test", "-e", f"{run_root(config)}/runs/{config.run.name}/address"]
    container["readinessProbe"] = {"exec": {"command": listens}, "periodSeconds": PROBE_S}
    # values of ${NAME} in the configuration
    container["envFrom"] = [{"secretRef": {"name": f"{config.run.name}-environment", "optional": True}}]
    return _job(config, "controller", pod, {"completions": 1, "parallelism": 1})


def _trainer(config: Config) -> Manifest:
    cluster, ranks = config.cluster, ranks_per_node(config)
    name = f"{config.run.name}-trainer"
    words = (
        "python -m torch.distributed.run"
        f" --nnodes={cluster.trainer_nodes} --nproc-per-node={ranks} --max-restarts={RESTARTS}"
        f" --rdzv-backend=c10d --rdzv-id={name}"
        f" --rdzv-endpoint={name}-0.{name}:{RENDEZVOUS_PORT} -m workers.host {_address(config)}"
        " --role trainer --key /keys/worker.key"
    )
    # a rank 0 that leaves in order ends the ranks of other pods well, which would never be started again
    words = _restartable(words, by="TERM" if cluster.trainer_nodes == 1 else "KILL")
    pod = _pod(
        config, "trainer", words, keys=_worker_key(config, "trainer"),
        cpus=ranks * cluster.cpus_per_rank, memory_gb=ranks * cluster.memory_gb_per_rank,
        gpus=ranks * cluster.gpus_per_rank,
    )  # fmt: skip
    pod["subdomain"] = name
    nodes = cluster.trainer_nodes
    indexed = {"completions": nodes, "parallelism": nodes, "completionMode": "Indexed"}
    return _job(config, "trainer", pod, indexed)


def _rollout(config: Config) -> Manifest:
    cluster = config.cluster
    words = (
        f"python -m workers.host {_address(config)} --role rollout --key /keys/worker.key --name $POD_NAME"
    )
    pod = _pod(
        config, "rollout", _restartable(words), keys=_worker_key(config, "rollout"),
        cpus=cluster.cpus_per_instance,
        memory_gb=cluster.memory_gb_per_instance, gpus=cluster.gpus_per_instance,
    )  # fmt: skip
    return _job(config, "rollout", pod, {"parallelism": config.rollout.instances})


def _agent(config: Config) -> Manifest:
    cluster = config.cluster
    words = f"python -m workers.host {_address(config)} --role agent --key /keys/worker.key --name $POD_NAME"
    pod = _pod(
        config, "agent", _restartable(words), keys=_worker_key(config, "agent"),
        cpus=cluster.cpus_per_agent,
        memory_gb=cluster.memory_gb_per_agent,
    )  # fmt: skip
    return _job(config, "agent", pod, {"parallelism": agents(config)})


def _restartable(command: str, *, by: str = "TERM") -> str:
    """Words of a shell that run a command in a pod which is started again elsewhere if its node is drained.

    A Job starts no pod again that ended with 0. So only a command that ends by itself ends with its own code:
    one whose pod is told to end gets the signal `by`, and the pod's code is TOLD_TO_END.
    """
    wait = "" if by == "KILL" else "wait $pid; "
    return f"trap 'kill -{by} $pid; {wait}exit {TOLD_TO_END}' TERM; {command} & pid=$!; wait $pid"


def _address(config: Config) -> str:
    return f"tcp://{config.run.name}-controller:{config.cluster.port}"


def _worker_key(config: Config, role: str) -> Manifest:
    return {"secret": {"secretName": f"{config.run.name}-{role}-key", "defaultMode": 0o400}}


def _job(config: Config, part: str, pod: Manifest, counts: Manifest) -> Manifest:
    """A Job rather than a Deployment, so that pods that ended with the run are not started again."""
    template = {"metadata": {"labels": _labels(config, part)}, "spec": pod}
    limit = RESTARTS * counts["parallelism"]  # Kubernetes counts the pods of a Job together
    spec = {**counts, "backoffLimit": limit, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _meta(config, part), "spec": spec}


def _pod(
    config: Config,
    part: str,
    words: str,
    *,
    keys: Manifest,
    cpus: int = 4,
    memory_gb: int = 16,
    gpus: int = 0,
) -> Manifest:
    resources: Manifest = {"requests": {"cpu": str(cpus), "memory": f"{memory_gb}Gi"}}
    resources["limits"] = {"memory": f"{memory_gb}Gi"}
    if gpus:
        resources["limits"]["nvidia.com/gpu"] = str(gpus)
    container = {
        "name": part,
        "image": config.cluster.image,
        "workingDir": "/app",
        "command": ["/bin/sh", "-c", words],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "STALEFLOW_NO_INSTALL", "value": "1"},
            {"name": "PYTHONPATH", "value": "/app:/config"},
        ],
        "resources": resources,
        "volumeMounts": [
            {"name": "shared", "mountPath": config.cluster.shared_dir},
            {"name": "config", "mountPath": "/config", "readOnly": True},
            {"name": "keys", "mountPath": "/keys", "readOnly": True},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    }
    return {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": TERMINATION_S,
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": f"{config.run.name}-shared"}},
            {"name": "config", "configMap": {"name": f"{config.run.name}-config"}},
            {"name": "keys", **keys},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},  # NCCL needs more than the default 64 MB
        ],
    }
