"""Finds the extras that a configuration needs beside the base and the workers, by one table.

Invariants: every extra that a value needs is found before any part of the run starts; missing extras are
named together; nothing is installed here: launch.py installs, unless it is forbidden.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import install
from controller.check.data import package_for
from controller.check.source import asks_at_door
from controller.cli.install import why_not_here
from controller.config.models import Config
from install.vllm_environment import VLLM_ENVIRONMENT, unwanted, vllm_extras
from protocol.agents.renderers import EXTRA as RENDERERS
from protocol.agents.renderers import LIBRARY
from protocol.engines import ENGINES
from protocol.errors import ConfigError
from protocol.rewards.kinds import KINDS

VLLM = "vllm"  # stands for the build of this machine, in vLLM's own environment


@dataclass(frozen=True, slots=True)
class Need:
    """An extra, and the values that need it."""

    extra: str
    key: str
    values: Callable[[Config], Sequence[object]]
    """Values of the configuration that need the extra on this machine."""


NEEDS = (
    Need("lora", "trainer.lora.rank", lambda config: _local(config, [config.trainer.lora.rank])),
    Need("datasets", "data.path", lambda config: _read_by(config, "datasets")),
    Need("parquet", "data.path", lambda config: _read_by(config, "pyarrow")),
    Need("reasoning-gym", "data.path", lambda config: _read_by(config, "reasoning_gym")),
    Need("web", "agent.command", lambda config: config.agent.command[:1] if config.agent.workers else ()),
    Need("web", "agent.door", lambda config: _doors(config)),
    Need(RENDERERS, "agent.renderer", lambda config: _renders(config)),
    Need("verifiers", "data.path", lambda config: _read_by(config, "verifiers")),
    Need("verifiers", "agent.function", lambda config: _plays(config, "verifiers")),
    Need("openenv", "agent.function", lambda config: _plays(config, "openenv", at_server=True)),
    Need("openenv-core", "agent.function", lambda config: _plays(config, "openenv")),
    *(
        Need(kind.extra, f"reward {name}", lambda config, name=name: _scores(config, name))
        for name, kind in KINDS.items()
        if kind.extra
    ),
)
"""One line per extra; its modules are in install.EXTRAS, its packages in pyproject.toml. Those of engines
are in protocol.engines."""


def require(config: Config) -> None:
    """Return if all needed packages can be imported, or if vLLM cannot be installed, which `check` reports.

    Raises: install.Lacking if launch.py can install the missing ones; ConfigError if it may not.
    """
    reasons, extras = _named(config)
    if VLLM not in extras:
        require_extras("workers", *extras, reason=", ".join(reasons.values()))
    elif install.missing(extras) and _can_have_vllm(extras):
        raise install.Lacking(
            _beside_vllm(extras),
            environment=VLLM_ENVIRONMENT,
            unwanted=unwanted(),
            reason=", ".join(reasons.values()),
        )


def installed_by_the_run(config: Config) -> dict[str, str]:
    """Keys whose values need missing extras that the run would install -> why."""
    (_, extras), (reasons, _) = _named(config), _named(config, is_here=False)
    if not reasons or install.is_forbidden():
        return {}
    return reasons if VLLM not in extras or _can_have_vllm(extras) else {}


def _named(config: Config, *, is_here: bool = True) -> tuple[dict[str, str], list[str]]:
    """The reason for each key, and all extras that the configuration needs.

    `is_here`: also those that are installed in this environment.
    """
    extras = dict.fromkeys(engine.extra for engine in ENGINES.values() if engine.extra)
    engines = [Need(extra, "rollout.engine", partial(_instances, extra=extra)) for extra in extras]
    named = [(need, values) for need in (*NEEDS, *engines) if (values := need.values(config))]
    named = [pair for pair in named if is_here or install.missing([pair[0].extra])]
    reasons = {need.key: f"{need.key} {values[0]} needs the extra {need.extra}" for need, values in named}
    return reasons, list(dict.fromkeys(need.extra for need, _ in named))


def _can_have_vllm(extras: Sequence[str]) -> bool:
    return install.is_complete(VLLM_ENVIRONMENT, _beside_vllm(extras)) or not why_not_here()


def _beside_vllm(extras: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*vllm_extras(), *(extra for extra in extras if extra != VLLM)]))


def require_folder(what: str) -> None:
    """Raises: ConfigError if StaleFlow was installed without its folder, where `what` lies."""
    if not install.has_folder():
        raise ConfigError(
            f"{what} of StaleFlow's repository, and only its packages are installed here ({install.ROOT}). "
            "Expected a checkout: clone the repository, and give this command to its launch.py."
        )


def require_extras(*extras: str, reason: str) -> None:
    """Return if the modules of the extras can be imported.

    Raises: install.Lacking if launch.py can install them; ConfigError if it may not.
    """
    lacking = install.missing(extras)
    if lacking and os.environ.get("STALEFLOW_NO_INSTALL") == "1":
        raise ConfigError(
            f"{reason}: {sys.executable} lacks {', '.join(lacking)}, and STALEFLOW_NO_INSTALL=1 forbids to "
            f"install. By hand: {install.by_hand(extras)}"
        )
    if lacking:
        raise install.Lacking(extras, reason=reason)


def _local(config: Config, values: Sequence[int]) -> list[int]:
    """The values that count if the trainer runs on this machine; one elsewhere has its own packages."""
    return [value for value in values if value and config.trainer.local]


def _instances(config: Config, *, extra: str) -> list[str]:
    """The engine of local instances, if it needs this extra."""
    starts_any = config.rollout.instances > 0 and not config.trainer.is_supervised
    engine = ENGINES.get(config.rollout.engine)
    return [config.rollout.engine] if starts_any and engine is not None and engine.extra == extra else []


def _scores(config: Config, kind: str) -> list[str]:
    """Labels of rewards of this kind that are computed on this machine."""
    if config.trainer.is_supervised or not config.reward.workers:
        return []
    entries = config.reward.entries_and(config.evaluation.reward_function)
    return [entry.label for entry in entries if entry.kind == kind]


def _sources(config: Config) -> Iterator[str]:
    """All paths from which the run reads prompts."""
    yield from (one.path for _, one in config.data.each)
    if config.evaluation.every_steps:
        yield from (source.path for source in config.evaluation.data.values())


def _read_by(config: Config, package: str) -> list[str]:
    """Sources that this package reads."""
    return [path for path in _sources(config) if package_for(path) == package]


def _doors(config: Config) -> list[object]:
    """A value if agents of this machine use the door, by `agent.door` or by their function's parameters."""
    agent = config.agent
    if agent.workers and agent.door:
        return [True]
    is_implied = agent.workers and agent.kind in ("auto", "function") and asks_at_door(agent.import_path)
    return [f"(which the parameters of {agent.function} ask for)"] if is_implied else []


def _renders(config: Config) -> list[str]:
    """The renderer of this machine's agent workers, if it is of the library."""
    agent = config.agent
    return [agent.renderer] if agent.renderer in LIBRARY and agent.is_on and agent.workers else []


def _plays(config: Config, kind: str, *, at_server: bool = False) -> list[str]:
    """The agent of this machine's workers, if it is of this kind."""
    agent = config.agent
    is_of = agent.kind == kind or (at_server and agent.kind == "auto")
    is_there = ("://" in agent.function) == at_server and agent.is_on and agent.workers > 0
    return [agent.function] if is_of and is_there else []
