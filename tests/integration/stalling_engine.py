"""The torch engine, whose step stands still while a gate is there (tests/tasks/stalling.py)."""

from tests.tasks.stalling import wait
from workers.engines.torch import make_engine


class StallingEngine:
    """Alive, and stuck now and then."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def step(self):
        wait("engine")
        return self._engine.step()


def make(settings, model_directory):
    return StallingEngine(make_engine(settings, model_directory))
