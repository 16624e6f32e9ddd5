"""vLLM as it runs in production: its core steps in a process of its own, and this engine takes its samples.

Invariants:
- The core steps by itself; `step` returns the samples of one of its steps, in order, and waits only if none
  has come.
- Weights change only while the core is paused with nothing in flight and nothing untaken, so samples taken
  before are of the old version and samples taken after of the new one, however far vLLM schedules ahead.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file

from workers.engines.interface import Generation, Key
from workers.engines.vllm.engine import VllmEngine
from workers.engines.vllm.weights import Reach, shared_folder

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

    from workers.engines.vllm.core_process import CoreProcess


class RunningVllmEngine(VllmEngine):
    """An engine that runs by itself (workers/engines/interface.py): vLLM's core is in its own process."""

    def __init__(self, *arguments: Any, core: "CoreProcess", **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._core, self._is_elsewhere = core, True
        self._stepped_at = time.monotonic()  # the newest step whose time was counted

    def on_step(self, call: Callable[[], None]) -> None:
        """Call this, on any thread, whenever `step` has samples to return."""
        self._core.on_output(call)

    def has_stepped(self) -> bool:
        """Whether `step` would return without waiting."""
        return self._core.has_output()

    def pause(self) -> None:
        """Let no further step begin; returns at once."""
        self._core.pause()

    def is_settled(self) -> bool:
        """Whether the pause is complete, and `step` has returned all samples from before it."""
        return self._core.is_paused()

    def resume(self) -> None:
        """Let steps begin again, if they were paused."""
        self._stepped_at = time.monotonic()
        self._core.resume()

    def add(self, generation: Generation) -> None:
        """Queue a generation. Raises: ValueError as every engine; RunError if the core has ended."""
        if not self._live:
            self._stepped_at = time.monotonic()
        with self._core.in_words():
            super().add(generation)

    def abort(self, keys: Sequence[Key]) -> None:
        """Forget these generations at once; unknown keys are ignored."""
        with self._core.in_words():
            super().abort(keys)

    def load_weights(self, policy_version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Swap the weights, while nothing runs or all is settled. Raises: as every engine; RunError."""
        assert not self._live or self.is_settled(), "weights change only behind a pause"
        with self._core.in_words():
            super().load_weights(policy_version, tensors)

    def _is_to_step(self) -> bool:
        return self.has_stepped() or (bool(self._live) and not self.is_settled())

    def _stepped(self) -> tuple[list["RequestOutput"], float]:
        with self._core.in_words():
            outputs: list[RequestOutput] = self.llm.step()
        if not outputs:
            return [], 0.0  # counted with the next step that samples
        ended_at = max(output.metrics.last_token_ts for output in outputs)  # the core's clock is ours
        seconds, self._stepped_at = max(ended_at - self._stepped_at, 0.0), max(ended_at, self._stepped_at)
        return outputs, seconds

    def _reach(self) -> Reach:
        return self._core.collective_rpc

    def _held(self) -> dict[str, torch.Tensor]:
        size = 4 * sum(math.prod(shape) for shape in self._shapes.values())  # in float32, at most
        with shared_folder(size) as folder:
            file = str(Path(folder) / "weights.safetensors")
            self._core.collective_rpc("save_weights", path=file)
            return {name: tensor.clone() for name, tensor in load_file(file).items()}
