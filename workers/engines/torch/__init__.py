"""The embedded rollout engine: continuous batching over any Hugging Face causal LM, on CPU or GPU."""

from workers.engines.torch.engine import TorchEngine, make_engine

__all__ = ["TorchEngine", "make_engine"]
