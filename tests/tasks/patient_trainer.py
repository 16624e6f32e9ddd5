"""A trainer whose checkpoints are not written before somebody opens the fifo `gate` beside the run."""

from collections.abc import Callable
from pathlib import Path

from workers.trainer.trainer import Trainer


class PatientTrainer(Trainer):
    """Waits in the thread that writes, and nowhere else."""

    def begin_checkpoint(self, policy_version: int) -> Callable[[], Path]:
        write, gate = super().begin_checkpoint(policy_version), Path(self._settings.run_dir).parent / "gate"

        def write_later() -> Path:
            with gate.open("rb"):
                return write()

        return write_later
