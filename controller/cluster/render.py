"""Makes the files that start a run on Slurm or Kubernetes, from its configuration.

Invariants: the same configuration gives the same files; they hold no secret; each run has its own keys.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import yaml

from controller.cluster.manifests import manifests_of
from controller.cluster.names import require_slurm_names
from controller.cluster.plan import (
    agents,
    key_of,
    ranks_per_node,
    roles,
    run_root,
    told,
)
from controller.config.models import Config
from protocol.errors import NoAnswer

TEMPLATES = Path(__file__).parent / "templates"
LOOK_S = 20  # between two looks at the controller's job
LOOKS = 2  # until the job leaves the queue, or is queued again, after a worker has left


class _Sheet(Template):
    delimiter = "@@"  # `$` and a single `@` belong to the shell


def render_slurm(config: Config, path: str, overrides: Sequence[str] = ()) -> dict[str, str]:
    """The text of each file by name; `path` is the configuration file as the jobs find it.

    `overrides`: those by which `config` differs from the file. Raises: ConfigError if ranks do not spread
    evenly over nodes, or Slurm does not accept the run's name.
    """
    require_slurm_names(config)
    cluster, ranks = config.cluster, ranks_per_node(config)
    keys = f"{run_root(config)}/keys/{config.run.name}"
    common = {
        "name": config.run.name,
        "config": shlex.quote(path),
        "overrides": " \\\n    ".join(map(shlex.quote, told(config, keys, overrides))),
        "time_limit": cluster.time_limit,
        "port": cluster.port,
        "no_answer": NoAnswer.EXIT_CODE,
    }
    again = {"look_s": LOOK_S, "looks": LOOKS, "no_answer": NoAnswer.EXIT_CODE}
    common["while_queued"] = _filled("while_queued.sh", again).removesuffix("\n")
    own: dict[str, dict[str, Any]] = {
        "controller": {"directives": _directives(config, cluster.controller_partition, gpus=0)},
        "trainer": {
            "directives": _directives(config, cluster.partition, gpus=ranks * cluster.gpus_per_rank),
            "nodes": cluster.trainer_nodes,
            "ranks_per_node": ranks,
            "cpus": ranks * cluster.cpus_per_rank,
            "memory": ranks * cluster.memory_gb_per_rank,
        },
        "rollout": {
            "directives": _directives(config, cluster.partition, gpus=cluster.gpus_per_instance),
            "cpus": cluster.cpus_per_instance,
            "memory": cluster.memory_gb_per_instance,
        },
        "agent": {
            "directives": _directives(config, cluster.controller_partition, gpus=0),
            "cpus": cluster.cpus_per_agent,
            "memory": cluster.memory_gb_per_agent,
        },
    }
    files = {"controller.sbatch": _filled("controller.sbatch", common | own["controller"])}
    for role in roles(config):
        key = {"key": shlex.quote(f"{keys}/{key_of(config, role)}.key")}
        files[f"{role}.sbatch"] = _filled(f"{role}.sbatch", common | own[role] | key)
    lines = {"keys_made": _keys_made(config, shlex.quote(keys)), "jobs": _jobs(config)}
    return files | {"submit.sh": _filled("submit.sh", common | lines)}


def render_kubernetes(config: Config, path: str, overrides: Sequence[str] = ()) -> dict[str, str]:
    """The text of each file by name: manifests, and a script that makes the secrets and applies them.

    `overrides`: those by which `config` differs from the file at `path`. Raises: ConfigError if ranks do not
    spread evenly over nodes, Kubernetes does not accept a name, or a file cannot be read.
    """
    manifests = manifests_of(config, Path(path), overrides)
    names = [key_of(config, role) for role in roles(config)]
    values = {
        "name": config.run.name,
        "namespace": config.cluster.namespace,
        "keys_made": _keys_made(config, '"$keys"', python="python3"),
        "secrets": "\n".join(
            f'secret {name}-key --from-file=worker.key="$keys/{name}.key"' for name in names
        ),
    }
    return {
        "apply.sh": _filled("apply.sh", values),
        "staleflow.yaml": yaml.safe_dump_all(manifests, sort_keys=False, width=110),
    }


def _filled(name: str, values: dict[str, Any]) -> str:
    lines = _Sheet((TEMPLATES / name).read_text()).substitute(values).split("\n")
    return "\n".join(line for line in lines if line != "#")


def _keys_made(config: Config, folder: str, python: str = '"$python"') -> str:
    """Lines of a script that make each missing key; `folder` is a quoted word of the shell."""
    lines = []
    for role in roles(config):
        name = key_of(config, role)
        make = f"{python} launch.py keygen {folder} --role {role} --name {name}"
        lines.append(f"[ -e {folder}/{name}.key ] || {make}")
    return "\n".join(lines)


def _jobs(config: Config) -> str:
    """Lines of a script that submit the jobs of workers, which begin after the controller."""
    counts = {"rollout": config.rollout.instances, "agent": agents(config)}
    lines = []
    for role in roles(config):
        array = f"--array=1-{counts[role]} " if role in counts else ""
        lines.append(f'sbatch "${{after[@]}}" {array}"$here/{role}.sbatch"')
    return "\n".join(lines)


def _directives(config: Config, partition: str, *, gpus: int) -> str:
    """Further #SBATCH lines; "#", which is left out, if there are none."""
    wanted = {
        "partition": partition,
        "account": config.cluster.account,
        "gpus-per-node": str(gpus) if gpus else "",
    }
    return "\n".join(f"#SBATCH --{key}={value}" for key, value in wanted.items() if value) or "#"
