"""The pause around an update of an instance: `python -m benchmarks.pause [--steps 20]`.

A real run of the quickstart (from random weights: learning is not the matter) with both policies, interrupt
and recompute, and keep-KV. Each engine notes by the host's clock when a step has sampled tokens, and when a
version was opened and swapped in. The gap is from the last tokens under the old weights to the first under
the new, of instances that had work at that moment; the transfer is from opening the version (mapping it,
every checksum) to the end of the swap. Beside it stands what the other instances did at the same time: their
longest step, and their longest in as long a time a second before and after.
"""

import argparse
import asyncio
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from controller import Controller, load_config
from protocol.settings import WorkerSettings
from workers.engines.interface import Sampled
from workers.engines.torch import make_engine
from workers.engines.torch.engine import TorchEngine
from workers.weights import tensors

ROOT = Path(__file__).parents[1]
RUNS = Path("runs/pause")
AIM_S = 0.1  # that a gap may last beyond its transfer
SKIPPED_UPDATES = 2  # of each instance: imports, pages touched for the first time


class NotingEngine(TorchEngine):
    """A torch engine that notes when what happens to its tokens."""

    def note_in(self, run: Path) -> None:
        self._notes = open(run / f"notes-{os.getpid()}.jsonl", "w", buffering=1)  # noqa: SIM115 - until the end
        read = tensors.read

        def noted(location: str | Path, digest: str) -> dict[str, torch.Tensor]:
            self._note("open")
            return read(location, digest)

        tensors.read = noted

    def _note(self, what: str, left: int = 0) -> None:
        self._notes.write(json.dumps([time.monotonic(), what, left]) + "\n")

    def step(self) -> list[Sampled]:
        sampled = super().step()
        if sampled:
            self._note("tokens", len(self._keys) + len(self._waiting))
        return sampled

    def load_weights(self, policy_version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        super().load_weights(policy_version, tensors)
        self._note("swapped")


def make_noting(settings: WorkerSettings, model_directory: str) -> NotingEngine:
    """The factory that `rollout.engine` names."""
    engine = make_engine(settings, model_directory, NotingEngine)
    assert isinstance(engine, NotingEngine)
    engine.note_in(Path(settings.run_dir))
    return engine


class Update(NamedTuple):
    """One swap of weights in the middle of a stream of tokens."""

    begin_s: float  # the last tokens before
    opened_s: float
    swapped_s: float
    end_s: float  # the first after

    @property
    def gap_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def transfer_s(self) -> float:
        return self.swapped_s - self.opened_s


class Stream(NamedTuple):
    """What one instance noted."""

    steps: list[tuple[float, float]]  # from tokens to the next tokens, while there was work and no update
    updates: list[Update]

    def longest_during(self, update: Update, later_s: float = 0.0) -> float | None:
        """The longest of its steps that overlap an update of another instance, or as long a time `later_s`
        after it began."""
        begin, end = update.begin_s + later_s, update.end_s + later_s
        return max((b - a for a, b in self.steps if a < end and b > begin), default=None)


def read_notes(file: Path) -> Stream:
    """Steps and updates out of the notes of one engine."""
    notes = [json.loads(line) for line in file.read_text().splitlines()]
    steps: list[tuple[float, float]] = []
    updates: list[Update] = []
    before, opened, swapped = None, 0.0, None
    for at, what, left in notes:
        if what == "open":
            opened = at
        elif what == "swapped":
            swapped = at
        else:
            if before is not None and before[1]:  # it had work left
                if swapped is None:
                    steps.append((before[0], at))
                else:
                    updates.append(Update(before[0], opened, swapped, at))
            before, swapped = (at, left), None
    return Stream(steps, updates[SKIPPED_UPDATES:])


async def run(name: str, overrides: list[str]) -> list[Stream]:
    """One run; the streams of its instances."""
    folder = RUNS / name
    shutil.rmtree(folder, ignore_errors=True)
    settings = [
        f"run.dir={RUNS}", f"run.name={name}", "model.factory=ledger_task.py:make_untrained_model",
        f"rollout.engine={ROOT / 'benchmarks' / 'pause.py'}:make_noting", *overrides,
    ]  # fmt: skip
    async with Controller(load_config(str(ROOT / "examples" / "quickstart.yaml"), settings)) as controller:
        async for _ in controller.train():
            pass
    return [read_notes(file) for file in sorted(folder.glob("notes-*.jsonl"))]


def tell(name: str, streams: list[Stream]) -> None:
    """Print gaps and what others did meanwhile."""
    updates = [update for stream in streams for update in stream.updates]
    over = [u.gap_s - u.transfer_s for u in updates]
    usual = sorted(b - a for stream in streams for a, b in stream.steps)
    pairs = [(u, other) for one in streams for u in one.updates for other in streams if other is not one]
    others = {
        later_s: [s for update, other in pairs if (s := other.longest_during(update, later_s)) is not None]
        for later_s in (0.0, -1.0, 1.0)
    }
    print(f"{name}: {len(updates)} updates in the middle of a stream, {len(streams)} instances")
    for what, values in (
        ("gap", [u.gap_s for u in updates]),
        ("transfer", [u.transfer_s for u in updates]),
        ("gap beyond the transfer", over),
        ("from the swap to tokens", [u.end_s - u.swapped_s for u in updates]),
        ("a step without an update", usual),
        ("longest step of others meanwhile", others[0.0]),
        ("the same, 1 s before and after", [*others[-1.0], *others[1.0]]),
    ):
        print(f"{what:>34}: {told(values)}")
    print(f"{'':>34}  {sum(o <= AIM_S for o in over)} of {len(over)} within {AIM_S * 1e3:.0f} ms")


def told(values: list[float]) -> str:
    ranked = sorted(values)
    if not ranked:
        return "none"
    p90, p99 = (ranked[min(len(ranked) - 1, int(share * len(ranked)))] for share in (0.9, 0.99))
    figures = {"median": median(ranked), "p90": p90, "p99": p99, "longest": ranked[-1]}
    return ", ".join(f"{word} {value * 1e3:.1f} ms" for word, value in figures.items())


def main() -> None:
    """Print the figures of both policies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; trainer and reward worker share them")
    for name, keep_kv in (("interrupt and recompute", "false"), ("keep-KV", "true")):
        settings: list[Any] = [f"run.steps={arguments.steps}", f"staleness.keep_kv={keep_kv}"]
        tell(name, asyncio.run(run(name.lower().replace(" ", "_"), [*settings, *arguments.overrides])))


if __name__ == "__main__":
    main()
