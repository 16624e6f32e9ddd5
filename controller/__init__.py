"""The controller: decides everything, computes nothing. Imports neither torch, transformers nor vllm."""

from controller import siblings  # noqa: F401  # first, as it refuses packages of others under our names
from controller.compiled import preferred  # noqa: F401  # before the core, or a strategy, is imported
from controller.config.load import load_config
from controller.config.models import Config
from controller.controller import Controller, Step

__all__ = ["Config", "Controller", "Step", "load_config"]
