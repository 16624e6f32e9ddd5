"""The settings that every worker is sent when it attaches.

Invariant: they hold the sections of the configuration that workers read, and no section of the controller.
"""

import ipaddress

from controller.config.models import Config
from protocol.settings import WorkerSettings, load_settings


def worker_settings(config: Config, run_dir: str, import_paths: tuple[str, ...]) -> WorkerSettings:
    """The settings that every worker is sent."""
    return WorkerSettings(
        run_dir=run_dir,
        seed=config.run.seed,
        steps=config.run.steps,
        model=config.model,
        rollout=config.rollout,
        reward=config.reward,
        trainer=config.trainer,
        agent=config.agent,
        template_kwargs=config.data.chat_template_kwargs if config.agent.is_on else {},
        evaluation_sampling=config.evaluation.sampling,
        evaluation_function=config.evaluation.reward_function,
        weights=config.weights,
        keeps_kv=config.staleness.keep_kv,
        is_colocated=config.is_colocated,
        import_paths=import_paths,
        bind_host=_bind_host(config.controller.bind),
        is_private=config.run.private,
        reattach_s=config.controller.reattach_s,
    )


def with_secrets(told: str, config: Config, run_dir: str, import_paths: tuple[str, ...]) -> str:
    """Settings of the core for one worker, with secrets filled in from the host's configuration."""
    newest = load_settings(told).newest_version
    settings = worker_settings(config, run_dir, import_paths)
    return settings.model_copy(update={"newest_version": newest}).model_dump_json()


def _bind_host(bind: str) -> str:
    """The address in `controller.bind` if it names one that other hosts reach; else ""."""
    host = bind.removeprefix("tcp://").rpartition(":")[0].strip("[]") if bind.startswith("tcp://") else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    return "" if address.is_loopback or address.is_unspecified else host
