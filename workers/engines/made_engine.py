"""Makes the configured engine."""

from protocol.blame import without_stop
from protocol.engines import ENGINES
from protocol.errors import ConfigError
from protocol.importing import load_object
from protocol.settings import WorkerSettings
from workers.engines.interface import Engine, EngineFactory, ReleasingEngine, check_new


def make_engine(settings: WorkerSettings, model_directory: str) -> Engine:
    """The engine that `rollout.engine` names. Raises: ConfigError."""
    name = settings.rollout.engine
    built_in = ENGINES.get(name)
    if built_in is not None:
        if problem := built_in.temperature_problem(settings.rollout.sampling.temperature):
            raise ConfigError(f"`rollout.sampling.temperature` {problem}")
        name_of_factory = built_in.colocated if settings.is_colocated else built_in.factory
    else:
        name_of_factory = name
    make: EngineFactory = load_object(name_of_factory)
    engine = without_stop(make, settings, model_directory)  # this may run in a thread
    if settings.is_colocated and not isinstance(engine, ReleasingEngine):
        raise ConfigError(
            f"`placement` is colocated, and the engine that {name} made has no `release`; expected one as "
            "`ReleasingEngine` in workers/engines/interface.py. Write it, or leave placement out."
        )
    is_cut = settings.rollout.sampling.is_cut and not settings.trainer.is_supervised
    check_new(engine, name, is_cut=is_cut)
    return engine
