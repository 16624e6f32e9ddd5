"""The plan of a run on a cluster: roles to start, their keys, and overrides of the controller.

Invariant: settings that a cluster changes (address, keys, run directory, who starts workers) reach the
controller as overrides behind those of the command line, so that the same configuration file runs on a
laptop."""

from collections.abc import Sequence

from controller.config.models import Config
from protocol.errors import ConfigError
from protocol.messages import Role

RENDEZVOUS_PORT = 29400  # torchrun's own default; on Kubernetes, where each pod has an address of its own
RESTARTS = 100  # of pods, and of torchrun's ranks in them: each resumes from the newest checkpoint


def roles(config: Config) -> tuple[Role, ...]:
    """Roles whose workers the cluster starts; a supervised run has no rollout workers."""
    generates: tuple[Role, ...] = () if config.trainer.is_supervised else ("rollout",)
    return ("trainer", *generates, *(("agent",) if agents(config) else ()))


def agents(config: Config) -> int:
    """Number of agent workers, which are jobs of their own; 0 without an agent."""
    return config.agent.workers if config.agent.is_on else 0


def key_of(config: Config, role: Role) -> str:
    """Name of the key of a role's workers."""
    return f"{config.run.name}-{role}"


def run_root(config: Config) -> str:
    """Folder on the shared file system for all files of runs."""
    return f"{config.cluster.shared_dir.rstrip('/')}/staleflow"


def ranks_per_node(config: Config) -> int:
    """Trainer ranks on each node. Raises: ConfigError if they do not spread evenly, or for no instances."""
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


def told(config: Config, keys: str, overrides: Sequence[str]) -> list[str]:
    """Overrides `key=value` of the controller's command line.

    `keys`: path of the folder of keys on the controller; `overrides`: those of the user's command line.
    """
    own = {
        "run.dir": f"{run_root(config)}/runs",
        "controller.bind": f"tcp://0.0.0.0:{config.cluster.port}",
        "controller.keys": keys,
        "trainer.local": "false",
        "rollout.instances": "0",
        "logging.console": "plain",
        **({"agent.workers": "0"} if agents(config) else {}),
    }
    given = [word for word in overrides if (key := word.partition("=")[0]) not in own and not _is_ours(key)]
    return [*given, *(f"{key}={value}" for key, value in own.items())]


def _is_ours(key: str) -> bool:
    """Whether a key is of the section `cluster`, which a run does not read."""
    return key.partition(".")[0] == "cluster"
