"""Files that start a run on Slurm or Kubernetes, from its configuration.

Invariants: the same configuration gives the same files; no secret is in them; what a cluster changes
(address, keys, run directory, who starts whom) reaches the controller as overrides, so that the configuration
file is the very one that runs on a laptop.
"""

import shlex
from pathlib import Path
from string import Template
from typing import Any

import yaml

from controller.config.models import Config
from protocol.errors import ConfigError

TEMPLATES = Path(__file__).parent / "templates"
RENDEZVOUS_PORT = 29400  # torchrun's own default
RESTARTS = 100  # of torchrun's ranks, and of pods: each goes on from the newest checkpoint
PROBE_S = 5
TERMINATION_S = 120  # for a last checkpoint
Manifest = dict[str, Any]


class _Sheet(Template):
    delimiter = "@@"  # `$` is the shell's, and so is a single `@`


def render_slurm(config: Config, path: str) -> dict[str, str]:
    """The text of each file by name; `path` is the configuration file as the jobs shall find it.

    Raises: ConfigError if the configuration cannot be spread over nodes.
    """
    cluster, ranks = config.cluster, _ranks_per_node(config)
    keys = f"{_run_root(config)}/keys"
    common = {
        "name": config.run.name,
        "config": shlex.quote(path),
        "overrides": _overrides(config, keys=keys, separator=" \\\n    "),
        "time_limit": cluster.time_limit,
        "port": cluster.port,
        "keys": shlex.quote(keys),
        "instances": config.rollout.instances,
        "restarts": RESTARTS,
        "rendezvous_port": RENDEZVOUS_PORT,
    }
    own = {
        "controller.sbatch": {"directives": _directives(config, cluster.controller_partition, gpus=0)},
        "trainer.sbatch": {
            "directives": _directives(config, cluster.partition, gpus=ranks * cluster.gpus_per_rank),
            "nodes": cluster.trainer_nodes,
            "ranks_per_node": ranks,
            "cpus": ranks * cluster.cpus_per_rank,
            "memory": ranks * cluster.memory_gb_per_rank,
            "key": shlex.quote(f"{keys}/{config.run.name}-trainer.key"),
        },
        "rollout.sbatch": {
            "directives": _directives(config, cluster.partition, gpus=cluster.gpus_per_instance),
            "cpus": cluster.cpus_per_instance,
            "memory": cluster.memory_gb_per_instance,
            "key": shlex.quote(f"{keys}/{config.run.name}-rollout.key"),
        },
        "submit.sh": _agent_lines(config, keys),
    }
    if _agents(config):
        own["agent.sbatch"] = {
            "directives": _directives(config, cluster.controller_partition, gpus=0),
            "cpus": cluster.cpus_per_agent,
            "memory": cluster.memory_gb_per_agent,
            "key": shlex.quote(f"{keys}/{config.run.name}-agent.key"),
        }
    return {name: _filled(name, common | values) for name, values in own.items()}


def render_kubernetes(config: Config, path: str) -> dict[str, str]:
    """The text of each file by name: manifests, and a script that makes the secrets and applies them.

    Raises: ConfigError if the configuration cannot be spread over nodes, or its file cannot be read.
    """
    manifests = [
        _volume_claim(config),
        _config_map(config, Path(path)),
        _service(config, "controller", config.cluster.port, is_headless=False),
        _service(config, "trainer", RENDEZVOUS_PORT, is_headless=True),
        _controller(config, Path(path).name),
        _trainer(config),
        _rollout(config),
        *([_agent(config)] if _agents(config) else []),
    ]
    values = {"name": config.run.name, "namespace": config.cluster.namespace, **_agent_lines(config)}
    return {
        "apply.sh": _filled("apply.sh", values),
        "staleflow.yaml": yaml.safe_dump_all(manifests, sort_keys=False, width=110),
    }


def _filled(name: str, values: dict[str, Any]) -> str:
    lines = _Sheet((TEMPLATES / name).read_text()).substitute(values).splitlines()
    return "".join(f"{line}\n" for line in lines if line != "#")


def _ranks_per_node(config: Config) -> int:
    ranks, nodes = config.trainer.ranks, config.cluster.trainer_nodes
    if ranks % nodes:
        raise ConfigError(
            f"{ranks} trainer ranks (trainer.ranks) do not spread evenly over {nodes} nodes "
            "(cluster.trainer_nodes); torchrun starts as many on each. Make one a multiple of the other."
        )
    if config.rollout.instances < 1 and not config.trainer.is_supervised:
        raise ConfigError(
            "rollout.instances is 0, so there is nothing to generate with; expected the rollout workers that "
            "the cluster shall start."
        )
    return ranks // nodes


def _agents(config: Config) -> int:
    """Agent workers, which are started for themselves: 0 if there is no agent."""
    return config.agent.workers if config.agent.is_on else 0


def _agent_lines(config: Config, keys: str = "") -> dict[str, str]:
    """Lines of scripts, "#" if they are to be left out. `keys`: where they are; "": in $keys."""
    name, folder = f"{config.run.name}-agent", shlex.quote(keys) if keys else '"$keys"'
    key = shlex.quote(f"{keys}/{name}.key") if keys else f'"$keys/{name}.key"'
    python = '"$python"' if keys else "python3"
    if not _agents(config):
        return {"agent_key": "#", "agent_job": "#", "agent_secret": "#"}
    return {
        "agent_key": f"[ -e {key} ] || {python} launch.py keygen {folder} --role agent --name {name}",
        "agent_job": f'sbatch "${{after[@]}}" --array=1-{_agents(config)} "$here/agent.sbatch"',
        "agent_secret": f"secret {name}-key --from-file=worker.key={key}",
    }


def _run_root(config: Config) -> str:
    return f"{config.cluster.shared_dir.rstrip('/')}/staleflow"


def _overrides(config: Config, *, keys: str, separator: str = " ") -> str:
    pairs = {
        "run.dir": f"{_run_root(config)}/runs",
        "controller.bind": f"tcp://0.0.0.0:{config.cluster.port}",
        "controller.keys": keys,
        "trainer.local": "false",
        "rollout.instances": "0",
        "logging.console": "plain",
        **({"agent.workers": "0"} if _agents(config) else {}),
    }
    return separator.join(shlex.quote(f"{key}={value}") for key, value in pairs.items())


# -- Slurm ------------------------------------------------------------------------------------------------


def _directives(config: Config, partition: str, *, gpus: int) -> str:
    """Further #SBATCH lines; "#", which is left out, if there are none."""
    wanted = {
        "partition": partition,
        "account": config.cluster.account,
        "gpus-per-node": str(gpus) if gpus else "",
    }
    return "\n".join(f"#SBATCH --{key}={value}" for key, value in wanted.items() if value) or "#"


# -- Kubernetes -------------------------------------------------------------------------------------------


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


def _config_map(config: Config, path: Path) -> Manifest:
    """The configuration file, and the Python files beside it that it names."""
    named = (config.model.factory, config.data.path, config.reward.function, config.agent.import_path)
    files = {Path(spec.rpartition(":")[0]) for spec in named if spec and ".py:" in spec}
    beside = sorted(file for file in files if file.parent.resolve() == path.parent.resolve())
    try:
        data = {file.name: file.read_text() for file in (path, *beside)}
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}.") from error
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(config, "config"), "data": data}


def _service(config: Config, part: str, port: int, *, is_headless: bool) -> Manifest:
    spec: Manifest = {"selector": _labels(config, part), "ports": [{"name": part, "port": port}]}
    if is_headless:  # ranks find each other by the names of their pods, before they are ready
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _meta(config, part), "spec": spec}


def _controller(config: Config, file: str) -> Manifest:
    secrets = [
        {"secret": {"name": f"{config.run.name}-server-key"}},
        {
            "secret": {
                "name": f"{config.run.name}-admitted",
                "items": [
                    {"key": f"{name}.json", "path": f"workers/{name}.json"}
                    for name in (f"{config.run.name}-{role}" for role in _roles(config))
                ],
                "optional": True,  # a key that was taken out is revoked
            }
        },
    ]
    words = f"exec python launch.py run /config/{shlex.quote(file)} {_overrides(config, keys='/keys')}"
    pod = _pod(config, "controller", words, keys={"projected": {"sources": secrets, "defaultMode": 0o400}})
    container = pod["containers"][0]
    # workers find a service that is ready: the file is there while the controller listens, and only then
    listens = ["test", "-e", f"{_run_root(config)}/runs/{config.run.name}/address"]
    container["readinessProbe"] = {"exec": {"command": listens}, "periodSeconds": PROBE_S}
    # what ${NAME} in the configuration stands for
    container["envFrom"] = [{"secretRef": {"name": f"{config.run.name}-environment", "optional": True}}]
    return _job(config, "controller", pod, {"completions": 1, "parallelism": 1})


def _roles(config: Config) -> tuple[str, ...]:
    return ("trainer", "rollout", "agent") if _agents(config) else ("trainer", "rollout")


def _trainer(config: Config) -> Manifest:
    cluster, ranks = config.cluster, _ranks_per_node(config)
    name = f"{config.run.name}-trainer"
    words = (
        "exec python -m torch.distributed.run"
        f" --nnodes={cluster.trainer_nodes} --nproc-per-node={ranks} --max-restarts={RESTARTS}"
        f" --rdzv-backend=c10d --rdzv-id={name}"
        f" --rdzv-endpoint={name}-0.{name}:{RENDEZVOUS_PORT} -m workers.host {_address(config)}"
        " --role trainer --key /keys/worker.key"
    )
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
        f"exec python -m workers.host {_address(config)} --role rollout --key /keys/worker.key"
        " --name $POD_NAME"
    )
    pod = _pod(
        config, "rollout", words, keys=_worker_key(config, "rollout"), cpus=cluster.cpus_per_instance,
        memory_gb=cluster.memory_gb_per_instance, gpus=cluster.gpus_per_instance,
    )  # fmt: skip
    return _job(config, "rollout", pod, {"parallelism": config.rollout.instances})


def _agent(config: Config) -> Manifest:
    cluster = config.cluster
    words = (
        f"exec python -m workers.host {_address(config)} --role agent --key /keys/worker.key --name $POD_NAME"
    )
    pod = _pod(
        config, "agent", words, keys=_worker_key(config, "agent"), cpus=cluster.cpus_per_agent,
        memory_gb=cluster.memory_gb_per_agent,
    )  # fmt: skip
    return _job(config, "agent", pod, {"parallelism": _agents(config)})


def _address(config: Config) -> str:
    return f"tcp://{config.run.name}-controller:{config.cluster.port}"


def _worker_key(config: Config, role: str) -> Manifest:
    return {"secret": {"secretName": f"{config.run.name}-{role}-key", "defaultMode": 0o400}}


def _job(config: Config, part: str, pod: Manifest, counts: Manifest) -> Manifest:
    """A Job rather than a Deployment: what has ended with the run is not started again."""
    template = {"metadata": {"labels": _labels(config, part)}, "spec": pod}
    spec = {**counts, "backoffLimit": RESTARTS, "template": template}
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
            {"name": "memory", "emptyDir": {"medium": "Memory"}},  # NCCL wants more than the default 64 MB
        ],
    }
