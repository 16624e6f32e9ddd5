"""vLLM as a rollout engine, on a GPU or a CPU, through its public API only."""

from workers.engines.vllm.start import make_engine

__all__ = ["make_engine"]
