"""The trainer's algorithm: trains on batches and makes policy versions; no network.

Invariants:
- A train step turns `policy_version` n into n + 1, on every rank with the same result.
- Master weights are float32; `model.dtype` is the precision of what is published.
- An optimizer step whose loss or gradient is not finite is skipped, counted and named; the weights stay the
  same. Three in a row end the run, with the batch written out.
- The published version is copied before a step changes a weight (`hold_weights`).
- Dropout is off: it would make proximal and updated logprobs differ without a change of weights.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from protocol.errors import ConfigError, RemoteError, RunError
from protocol.messages import Train, TrainAhead
from protocol.settings import WorkerSettings
from workers.models.arithmetic import ComputeMeter, passes_of
from workers.models.lora import DIGEST
from workers.models.lora_layers import without_adapter
from workers.models.model import pick_device
from workers.models.tail import tail_of
from workers.trainer import losses
from workers.trainer.batch import TrainBatch, read_batch
from workers.trainer.checkpoints import read_state
from workers.trainer.critic import CRITIC, CRITIC_MEANS, Critic, ValueStep
from workers.trainer.interface import Holdings
from workers.trainer.losses.own import RowGradients, load_loss
from workers.trainer.lr_schedule import lr_share
from workers.trainer.nonfinite_report import Skipped
from workers.trainer.packed_forward import PackedRow, pack_rows
from workers.trainer.packing import split_by_group
from workers.trainer.policy import check_policy, load_packed, load_policy
from workers.trainer.ranks import Ranks
from workers.trainer.saved.saver import Saver
from workers.trainer.sequence.group import group_of
from workers.trainer.sequence.shared_rows import shared_logprobs
from workers.trainer.sharding import (
    accumulated,
    forward_dtype,
    make_optimizer,
    reshard,
    shard,
    whole,
)
from workers.trainer.state import Published, missing_weights, published_tensors, restore_state
from workers.trainer.streaming import StreamedGroups
from workers.trainer.token_batch import (
    CorrectedTokens,
    ForwardPass,
    TokenBatch,
    correction_metrics,
    corrections_of,
    make_token_batch,
    needs_own_pass,
    tokens_of,
)

MEANS = ("loss", "grad_norm", "entropy", "clip_ratio")  # over optimizer steps, or their tokens
Steps = tuple[TrainBatch, TokenBatch, Iterator[dict[str, Any]]]
"""A batch, its token batch, and the numbers of its optimizer steps, each taken when it is iterated."""


class Trainer:
    """One rank of the trainer. Every method that is not a property is collective: all ranks call it alike."""

    def __init__(self, settings: WorkerSettings, model_directory: str) -> None:
        """Load the model and shard it over the ranks.

        Raises: ConfigError if the model cannot be loaded or packed, or the settings do not allow training.
        """
        if settings.rollout.sampling.temperature == 0:
            raise ConfigError(
                "`rollout.sampling.temperature` is 0: greedy responses have no logprobs to train on. "
                "Expected a temperature above 0; 1 keeps the policy's own distribution."
            )
        self.policy_version = 0
        self.seconds: dict[str, float] = {}
        """Seconds of the last train step.

        `proximal`: passes without gradient before it, when streaming those of the last part; `copy`: its wait
        for the copy of the version before; `ahead`, when streaming: the work before the batch was complete.
        """
        self.compute: dict[str, float] = {}
        """FLOPs of the last train step and their rate, as metrics."""
        self.corrections = CorrectedTokens()
        """Corrections of the last train step's tokens in kept samples."""
        self._settings = settings
        self._model_directory = Path(model_directory)
        torch.set_num_threads(settings.trainer.threads)
        self.ranks = Ranks(pick_device(settings.trainer.device))
        torch.manual_seed(settings.seed + self.ranks.rank)
        self._group = group_of(self.ranks, settings.trainer.sequence_ranks)
        self._forward_dtype = forward_dtype(settings, self.ranks.device)
        policy = load_policy(
            settings, self._model_directory, device=self.ranks.device, forward_dtype=self._forward_dtype
        )
        self.model, self._adapter, self._digest, self._layout = policy
        passes = passes_of(settings.trainer, has_own_pass=needs_own_pass(settings.trainer))
        self._meter = ComputeMeter(self.model, self.ranks, self._forward_dtype, passes)
        shard(self.model, self.ranks, settings.trainer, dtype=self._forward_dtype)
        self._tails = {
            self.model: check_policy(
                self.model, settings, self.ranks, self._group, forward_dtype=self._forward_dtype
            )
        }
        self._optimizer = make_optimizer(self.model, settings.trainer)
        self._loss = load_loss(settings.trainer.loss, settings.trainer, self.ranks.device)
        self._reference = None
        if settings.trainer.kl_coefficient > 0:  # below an adapter is the initial model
            self._reference = self.model if self._adapter else self._make_reference()
        self._critic = self._make_critic() if settings.trainer.baseline == "value" else None
        self._saver = Saver(settings, self._model_directory, self.ranks, self._adapter, self._layout)
        self._ahead = StreamedGroups()  # parts of the next batch
        self._skipped = Skipped(Path(settings.run_dir).absolute() / "not_finite")
        self._copied: Callable[[], object] = lambda: None

    def _make_reference(self) -> PreTrainedModel:
        """The initial model, frozen and sharded, so that each rank holds only its share."""
        model = self._load_again().requires_grad_(False)
        shard(model, self.ranks, self._settings.trainer, dtype=self._forward_dtype)
        self._tails[model] = tail_of(model) if self._tails[self.model] else None
        return model

    def _make_critic(self) -> Critic:
        options = self._settings.trainer
        return Critic(self._load_again(), self.ranks, options=options, forward_dtype=self._forward_dtype)

    def _load_again(self) -> PreTrainedModel:
        return load_packed(
            self._model_directory, device=self.ranks.device, forward_dtype=self._forward_dtype,
            is_shared=self._group is not None, like=self.model,
        )  # fmt: skip

    def train_step(self, train: Train, frames: Sequence[bytes]) -> dict[str, float]:
        """Train on one batch and return its metrics; afterwards `policy_version` is one higher.

        `loss` and `grad_norm` are means over the optimizer steps taken, `entropy` (nats), `clip_ratio` over
        their tokens; `tokens` counts response tokens; `skipped_steps` optimizer steps that were not finite.
        Raises: RemoteError if the batch is for another version; RunError after three skipped steps in a row.
        """
        self._check_version(train)
        began, options = time.perf_counter(), self._settings.trainer
        warmth = lr_share(options, step=self.policy_version, steps=self._settings.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = options.lr * warmth
        self._ahead.check(train)
        batch, flat, steps = (self._rest if train.ahead else self._whole)(train, frames, warmth)
        taken, place, nonfinite = [], 0, 0.0
        for place, step in enumerate(steps):
            nonfinite += step["nonfinite_log_ratios"]
            if problem := step.pop("problem", None):
                self._skipped.add({"minibatch": place, **step}, str(problem), version=train.train_version)
                if self._skipped.are_too_many:
                    self._skipped.give_up(train, batch=batch, flat=flat, ranks=self.ranks)
            else:
                self._skipped.clear()
                taken.append(step)
        self.policy_version += 1
        seconds = time.perf_counter() - began + self.seconds.get("ahead", 0.0)
        self.compute = self._meter.metrics(batch.lengths, len(flat.advantages), seconds)
        corrected = correction_metrics(flat, self.ranks, options=options, train_version=train.train_version)
        self.corrections = corrections_of(train, flat, options=options)
        return {
            **corrected,
            **losses.means(taken, self._step_names),
            **losses.value_metrics(flat.values, flat.returns),
            **batch.turn_metrics(),
            "lr": options.lr * warmth,
            "tokens": float(len(flat.advantages)),
            "nonfinite_log_ratios": nonfinite,
            "skipped_steps": float(place + 1 - len(taken)),
        }

    def train_ahead(self, part: TrainAhead, frames: Sequence[bytes]) -> None:
        """Compute the gradients of some groups before their batch is complete; `train_step` takes the step.

        Raises: RemoteError if the batch is for another version.
        """
        began = time.perf_counter()
        self._check_version(part)
        self._backward_part(part, frames, is_end=False)
        self._ahead.seconds += time.perf_counter() - began

    def tensors_for_publish(self) -> Published:
        """The tensors of a policy version as this rank holds them; the next step changes them."""
        named = published_tensors(self.model, self._layout)
        return named if self._digest is None else named | {DIGEST: self._digest}

    def hold_weights(self, copied: Callable[[], object]) -> None:
        """Call `copied` before the next change of a weight; it returns when weights may be changed."""
        self._copied = copied

    def begin_checkpoint(self, policy_version: int) -> Callable[[], Path]:
        """Copy the state of a checkpoint to host memory; returns the call that writes it.

        The call writes `checkpoints/step_<policy_version>` of the run directory, in any thread, while
        training goes on, and returns that path. Collective; every rank writes its own share, and on rank 0
        the call returns when all are on disk.

        Raises: RemoteError if the trainer is at another version; the call raises RunError if the file system
        refuses.
        """
        if policy_version != self.policy_version:
            raise RemoteError(
                f"A checkpoint of version {policy_version} was asked of a trainer at {self.policy_version}; "
                "expected them to be equal."
            )
        return self._saver.begin(policy_version, self._learners())

    def save_checkpoint(self, policy_version: int) -> Path:
        """Like `begin_checkpoint`, and write the checkpoint at once."""
        return self.begin_checkpoint(policy_version)()

    def held(self) -> Holdings:
        """The models on the device, and the optimizers."""
        models, optimizers = zip(*self._learners().values(), strict=True)
        return Holdings((*models, self._reference) if self._reference else models, optimizers)

    def _learners(self) -> dict[str, tuple[Any, torch.optim.Optimizer]]:
        """The trained models, each with its optimizer."""
        learners: dict[str, tuple[Any, torch.optim.Optimizer]] = {"": (self.model, self._optimizer)}
        if self._critic:
            learners[CRITIC] = (self._critic.model, self._critic.optimizer)
        return learners

    def load_checkpoint(self, path: str | Path) -> None:
        """Continue from a checkpoint, however many ranks wrote it. Raises: RunError if it does not fit."""
        policy_version, state = read_state(Path(path))
        if missing := missing_weights(self.model, state):
            raise RunError(
                f"{path} lacks {len(missing)} weights of this model, first {missing[0]}. Expected one that "
                f"was written with {self._model_directory}; resume with the configuration that wrote it."
            )
        self._await_copy()
        restore_state(self.model, self._optimizer, self.ranks, state)
        if self._critic:
            self._critic.restore(state, path)
        self.policy_version = policy_version

    def _check_version(self, message: Train | TrainAhead) -> None:
        if message.train_version != self.policy_version:
            raise RemoteError(
                f"A batch for version {message.train_version} came to a trainer at {self.policy_version}; "
                "expected them to be equal. Resume trainer and controller from the same checkpoint."
            )

    def _whole(self, train: Train, frames: Sequence[bytes], warmth: float) -> Steps:
        """The optimizer steps of a batch that came in one piece."""
        batch = read_batch(train, frames)
        minibatches = split_by_group(batch.groups, self._settings.trainer.minibatches)
        rows = [self._rows(batch, minibatch) for minibatch in minibatches]
        flat = self._evaluate(batch, minibatches, [row for some in rows for row in some])

        def step(some: Sequence[PackedRow]) -> dict[str, Any]:
            totals = self._backward(some, flat)
            value_step = self._critic.gradients(some, flat) if self._critic else None
            return self._optimizer_step(totals, value_step, warmth=warmth)

        return batch, flat, map(step, rows)

    def _rest(self, train: Train, frames: Sequence[bytes], warmth: float) -> Steps:
        """The optimizer step of a batch whose first part was trained ahead."""
        self._backward_part(train, frames, is_end=True)
        ahead, self._ahead = self._ahead, StreamedGroups()
        self.seconds["ahead"] = ahead.seconds
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= max(1, ahead.divisor)
        assert ahead.totals is not None
        ahead.totals[0] /= max(1, ahead.divisor)
        return *ahead.whole(train), iter([self._optimizer_step(ahead.totals, None, warmth=warmth)])

    def _backward_part(self, part: Train | TrainAhead, frames: Sequence[bytes], *, is_end: bool) -> None:
        """Add the gradients of one part of a batch."""
        batch, ahead = read_batch(part, frames), self._ahead
        indices = range(len(batch.tokens))
        rows = self._rows(batch, indices)
        flat = self._evaluate(batch, [indices], rows)
        ahead.add(part, frames, batch=batch, flat=flat, options=self._settings.trainer)
        totals = self._backward(rows, flat, is_end=is_end)
        ahead.totals = totals if ahead.totals is None else ahead.totals + totals

    def _rows(self, batch: TrainBatch, indices: Sequence[int]) -> list[PackedRow]:
        return pack_rows(batch, indices, self.model, self.ranks, options=self._settings.trainer)

    def _evaluate(
        self, batch: TrainBatch, minibatches: Sequence[Sequence[int]], rows: Sequence[PackedRow]
    ) -> TokenBatch:
        """The token batch: everything that does not change while the batch is trained on."""
        began, count = time.perf_counter(), len(batch.advantages)
        logprobs = entropy = reference = values = None
        if needs_own_pass(self._settings.trainer):
            logprobs, entropy = self._own_pass(rows, count)
        if (model := self._reference) is not None:
            with without_adapter(model):
                reference = self._fill(model, rows, lambda row: self._forward(row, model)[0], count=count)
        if (critic := self._critic) is not None:
            values = self._fill(critic.model, rows, critic.values, count=count)
        self.seconds = {"proximal": time.perf_counter() - began}
        return make_token_batch(
            batch, minibatches, ForwardPass(logprobs, entropy, reference, values), settings=self._settings,
            device=self.ranks.device,
        )  # fmt: skip

    def _own_pass(self, rows: Sequence[PackedRow], count: int) -> torch.Tensor:
        """Logprobs and entropy [2, N] of the whole batch under the current weights, on every rank."""
        return self._fill(
            self.model, rows, lambda row: torch.stack(self._forward(row, self.model)), count=count,
            columns=(2,),
        )  # fmt: skip

    @torch.no_grad()
    def _fill(
        self, model: PreTrainedModel, rows: Sequence[PackedRow], compute: Callable[[PackedRow], torch.Tensor],
        *, count: int, columns: tuple[int, ...] = (),
    ) -> torch.Tensor:  # fmt: skip
        """The results of `compute` per row, for the whole batch [*columns, N]; each rank computes a part."""
        filled_N = torch.zeros(*columns, count, device=self.ranks.device)
        for row in rows:
            found_N = compute(row)
            if self._group is None or self._group.rank == 0:  # all ranks of a group have the same result
                filled_N[..., row.places_N] = found_N
        reshard(model)
        return self.ranks.sum(filled_N)

    def _forward(self, row: PackedRow, model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
        return shared_logprobs(
            model, row, self._group, temperature=self._settings.rollout.sampling.temperature,
            is_entropy_trained=self._settings.trainer.entropy_coefficient > 0, tail=self._tails[model],
        )  # fmt: skip

    def _backward(self, rows: Sequence[PackedRow], flat: TokenBatch, *, is_end: bool = True) -> torch.Tensor:
        """Add the gradients of these rows; returns this rank's sums. Raises: PluginError, on all ranks."""
        options = self._settings.trainer
        totals = torch.zeros(6, dtype=torch.float64, device=self.ranks.device)
        gradients = RowGradients(self._loss, ranks=self.ranks.size)
        for row in accumulated(self.model, rows, self.ranks, options=options, is_end=is_end):
            tokens = tokens_of(
                flat, row.places_N, *self._forward(row, self.model), options=options,
                train_version=self.policy_version,
            )  # fmt: skip
            result = gradients.add(tokens)
            parts = (result.loss, tokens.entropy.sum(), result.clipped, result.nonfinite, result.kl)
            counts = totals.new_tensor(len(row.places_N))
            totals += torch.stack([*(part.detach().double() for part in parts), counts])
        if options.loss not in losses.LOSSES:
            self.ranks.raise_alike(gradients.error)
        return totals / options.sequence_ranks  # each rank of a group counts all of a row

    def _optimizer_step(
        self, totals: torch.Tensor, value_step: ValueStep | None, *, warmth: float
    ) -> dict[str, Any]:
        """Take the step of the computed gradients, unless loss or gradient norm is not finite.

        Returns its numbers, with `problem` if it was skipped.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._settings.trainer.grad_clip)
        grad_norm = whole(norm).item()
        loss, entropy, clipped, nonfinite, kl, tokens_count = self.ranks.sum(totals).tolist()
        step: dict[str, Any] = {
            "loss": loss,
            "grad_norm": grad_norm,
            "entropy": entropy / max(1.0, tokens_count),
            "clip_ratio": clipped / max(1.0, tokens_count),
            "nonfinite_log_ratios": nonfinite,
            "kl_reference": kl / max(1.0, tokens_count),
            "tokens": tokens_count,
        }
        if value_step:
            step |= value_step.metrics(tokens_count)
        bad = [
            name for name in step if name.endswith(("loss", "grad_norm")) and not math.isfinite(step[name])
        ]
        if not bad:
            self._await_copy()
            self._optimizer.step()
        self._optimizer.zero_grad()
        if self._critic:
            self._critic.finish(is_taken=not bad, lr_share=warmth)
        return step | ({"problem": ", ".join(f"{name} {step[name]}" for name in bad)} if bad else {})

    def _await_copy(self) -> None:
        """Wait for the copy of the published version; forward and backward pass have run meanwhile."""
        began = time.perf_counter()
        self._copied()
        self._copied = lambda: None
        self.seconds["copy"] = self.seconds.get("copy", 0.0) + time.perf_counter() - began

    @property
    def _step_names(self) -> tuple[str, ...]:
        names = MEANS if self._reference is None else (*MEANS, "kl_reference")
        return names if self._critic is None else (*names, *CRITIC_MEANS)
