"""What a run becomes on a cluster: the roles that are started, their keys, and what the controller is told.

Invariant: what a cluster changes (address, keys, run directory, who starts whom) reaches the controller as
overrides behind those of the command line, so that the configuration file is the very one that runs on a
laptop, and the run is the one that was asked for.
"""

from collections.abc import Sequence

from controller.config.models import Config
from protocol.errors import ConfigError
from protocol.messages import Role

RENDEZVOUS_PORT = 29400  # torchrun's own default
RESTARTS = 100  # of pods, and of torchrun's ranks in them: each goes on from the newest checkpoint


def roles(config: Config) -> tuple[Role, ...]:
    """Those whose workers the cluster starts; a supervised run generates nothing."""
    generates: tuple[Role, ...] = () if config.trainer.is_supervised else ("rollout",)
    return ("trainer", *generates, *(("agent",) if agents(config) else ()))


def agents(config: Config) -> int:
    """Agent workers, which are started for themselves: 0 if there is no agent."""
    return config.agent.workers if config.agent.is_on else 0


def key_of(config: Config, role: Role) -> str:
    """Name of the key that the workers of a role have."""
    return f"{config.run.name}-{role}"


def run_root(config: Config) -> str:
    """Folder of everything that lies on the shared file system."""
    return f"{config.cluster.shared_dir.rstrip('/')}/staleflow"


def ranks_per_node(config: Config) -> int:
    """Trainer ranks that each node starts. Raises: ConfigError if the run cannot be spread over nodes."""
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
    """The words `key=value` behind the controller's configuration file.

    `keys`: the folder of keys as the controller finds it; `overrides`: those of the command line.
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
    """Whether a key is of the section that says what to ask a cluster for, which a run does not read."""
    return key.partition(".")[0] == "cluster"
