"""Engines that a user got wrong: one samples at a temperature of its own, one keeps the first weights."""

from workers.engines.torch import make_engine

TEMPERATURE = 1.0  # whatever rollout.sampling asks for


def make_at_own_temperature(settings, model_directory):
    """It forgets to hand the temperature on, and reports logprobs of what it samples from."""
    sampling = settings.rollout.sampling.model_copy(update={"temperature": TEMPERATURE})
    rollout = settings.rollout.model_copy(update={"sampling": sampling})
    return make_engine(settings.model_copy(update={"rollout": rollout}), model_directory)


class DeafEngine:
    """It says of each version that it has loaded it."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def load_weights(self, policy_version, tensors):
        self._engine.policy_version = policy_version


def make_deaf(settings, model_directory):
    return DeafEngine(make_engine(settings, model_directory))
