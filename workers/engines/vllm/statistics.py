"""vLLM's own statistics after every step.

Invariant: counters are totals since the start; only the split of a mixed step's time is an estimate.
"""

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase


class Statistics(StatLoggerBase):
    """Reads vLLM's scheduler and iteration statistics, which stay until the next step."""

    def __init__(self, engine_index: int = 0) -> None:
        self.running = self.waiting = 0
        self.preemptions = self.prefill_tokens = self.reused_tokens = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *unused: Any, **also_unused: Any) -> None:
        """Called by vLLM at the end of a step."""
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            self.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs
            self.prefill_tokens += iteration_stats.prompt_token_stats.computed
            self.reused_tokens += iteration_stats.prompt_token_stats.local_cache_hit

    def log_engine_initialized(self) -> None:
        """Log nothing."""
