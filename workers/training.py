"""The trainer as an algorithm: batches in, policy versions out; no network, no clock.

Invariants:
- A train step turns `policy_version` n into n + 1, on every rank with the same result.
- Master weights are float32; `model.dtype` is the precision of what is published and, on a GPU, of the
  forward pass.
- An optimizer step whose loss or gradient is not finite is skipped and counted; the weights stay the same.
- What `state_for_publish` returns is a private copy: the next step does not touch it.
- Dropout is off: it would make the proximal and the updated logprobs differ for no reason.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from protocol.errors import ConfigError, RemoteError, RunError
from protocol.messages import Train
from protocol.settings import WorkerSettings
from workers import losses
from workers.batch import Batch, read_batch
from workers.checkpoints import read_state, write_checkpoint
from workers.model import load_causal_lm, pick_device
from workers.packed_forward import PackedRow, check_no_leak, choose_attention, pack_row, response_logprobs
from workers.packing import plan, split_by_group
from workers.ranks import Ranks
from workers.sharding import gather, make_optimizer, reshard, shard, whole
from workers.trainer_state import gather_state, missing_weights, named_tensors, restore_state

MAX_SKIPPED_STEPS = 20  # optimizer steps in a row; the weights themselves are broken then


@dataclass(frozen=True, slots=True)
class _Flat:
    """A batch's response tokens on the device, concatenated in its order; all [N], float32."""

    advantages: torch.Tensor
    rollout_logprobs: torch.Tensor
    token_weights: torch.Tensor  # sum to 1 over each mini-batch
    proximal_logprobs: torch.Tensor
    importance_weights: torch.Tensor
    seen_logprobs: torch.Tensor  # filled in by the update: those that each optimizer step started from


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
        self._settings = settings
        self._model_directory = Path(model_directory)
        torch.set_num_threads(settings.trainer.threads)
        self.ranks = Ranks(pick_device(settings.trainer.device))
        is_bfloat16 = self.ranks.device.type == "cuda" and settings.model.dtype == "bfloat16"
        forward_dtype = torch.bfloat16 if is_bfloat16 else torch.float32
        self.model = load_causal_lm(
            model_directory,
            dtype=torch.float32,
            device=self.ranks.device,
            attention=choose_attention(self.ranks.device, forward_dtype),
        )
        shard(self.model, self.ranks, forward_dtype=forward_dtype)
        check_no_leak(self.model, self.ranks.device)
        reshard(self.model)
        self._optimizer = make_optimizer(self.model, settings.trainer)
        self._skipped_in_a_row = 0

    def train_step(self, train: Train, frames: Sequence[bytes]) -> dict[str, float]:
        """Train on one batch and return its metrics; afterwards `policy_version` is one higher.

        `loss`, `grad_norm`, `entropy` (nats per token) and `clip_ratio` are means over the optimizer steps
        taken; `tokens` counts response tokens; `skipped_steps` optimizer steps that were not finite.
        Raises: RemoteError if the batch is for another version; RunError if nothing is finite any more.
        """
        if train.train_version != self.policy_version:
            raise RemoteError(
                f"A batch for version {train.train_version} came to a trainer at {self.policy_version}; "
                "expected them to be equal. Resume trainer and controller from the same checkpoint."
            )
        options = self._settings.trainer
        batch = read_batch(train, frames)
        lr = options.lr * min(1.0, (self.policy_version + 1) / max(1, options.warmup_steps))
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        minibatches = split_by_group(batch.groups, options.minibatches)
        rows = [self._rows(batch, minibatch) for minibatch in minibatches]
        flat = self._evaluate(batch, minibatches, [row for some in rows for row in some])
        steps = [self._optimizer_step(some, flat) for some in rows]
        taken = [step for step in steps if step]
        metrics = self._mismatch(flat)
        for name in ("loss", "grad_norm", "entropy", "clip_ratio", "nonfinite_log_ratios"):
            metrics[name] = sum(step[name] for step in taken) / max(1, len(taken))
        self.policy_version += 1
        skipped = len(steps) - len(taken)
        return metrics | {"lr": lr, "tokens": float(len(flat.advantages)), "skipped_steps": float(skipped)}

    def state_for_publish(self) -> dict[str, torch.Tensor]:
        """On rank 0 all weights, whole, on the CPU, in `model.dtype`, tied ones once; elsewhere nothing."""
        dtype = getattr(torch, self._settings.model.dtype)
        return gather(named_tensors(self.model), self.ranks, dtype=dtype)

    def save_checkpoint(self, policy_version: int) -> Path:
        """Write `checkpoints/step_<policy_version>` in the run directory and return its path.

        Raises: RemoteError if the trainer is not at this version; RunError if the file system refuses.
        """
        if policy_version != self.policy_version:
            raise RemoteError(
                f"A checkpoint of version {policy_version} was asked of a trainer at {self.policy_version}; "
                "expected them to be equal."
            )
        directory = Path(self._settings.run_dir).absolute() / "checkpoints"
        published = self.state_for_publish()
        state = gather_state(self.model, self._optimizer, self.ranks)
        if self.ranks.rank != 0:
            return directory / f"step_{self.policy_version}"
        return write_checkpoint(
            directory,
            self.policy_version,
            model_directory=self._model_directory,
            published=published,
            state=state,
            keep=self._settings.trainer.keep_checkpoints,
        )

    def load_checkpoint(self, path: str | Path) -> None:
        """Go on from a checkpoint, whatever number of ranks wrote it. Raises: RunError if it does not fit."""
        policy_version, state = read_state(Path(path))
        if missing := missing_weights(self.model, state):
            raise RunError(
                f"{path} lacks {len(missing)} weights of this model, first {missing[0]}. Expected one that "
                f"was written with {self._model_directory}; resume with the configuration that wrote it."
            )
        restore_state(self.model, self._optimizer, state)
        self.policy_version = policy_version

    def _rows(self, batch: Batch, indices: Sequence[int]) -> list[PackedRow]:
        """This rank's micro-batches of one mini-batch."""
        lengths = [len(batch.tokens[index]) for index in indices]
        budget = self._settings.trainer.max_tokens_per_microbatch
        mine = plan(lengths, ranks=self.ranks.size, max_tokens=budget)[self.ranks.rank]
        return [pack_row(batch, [indices[place] for place in some], self.ranks.device) for some in mine]

    def _evaluate(
        self, batch: Batch, minibatches: Sequence[Sequence[int]], rows: Sequence[PackedRow]
    ) -> _Flat:
        """Everything about the batch that does not change while it is trained on."""
        device, options = self.ranks.device, self._settings.trainer
        rollout = torch.from_numpy(batch.rollout_logprobs).to(device)
        proximal, importance = rollout, torch.ones_like(rollout)
        if options.proximal == "recompute":
            proximal = self._proximal_logprobs(rows, len(rollout))
            importance = losses.truncated_importance_weights(proximal, rollout, cap=options.importance_cap)
        lengths = torch.tensor(batch.response_lengths)
        weights = torch.cat(
            [losses.token_weights(lengths[list(some)], options.loss_aggregation) for some in minibatches]
        )
        return _Flat(
            advantages=torch.from_numpy(batch.advantages).to(device),
            rollout_logprobs=rollout,
            token_weights=weights.to(device),
            proximal_logprobs=proximal,
            importance_weights=importance,
            seen_logprobs=torch.zeros_like(rollout),
        )

    @torch.no_grad()
    def _proximal_logprobs(self, rows: Sequence[PackedRow], count: int) -> torch.Tensor:
        """Logprobs of the whole batch under the weights as they are, on every rank; each fills in a part."""
        logprobs_N = torch.zeros(count, device=self.ranks.device)
        for row in rows:
            logprobs_N[row.places_N] = self._forward(row)[0]
        reshard(self.model)
        return self.ranks.sum(logprobs_N)

    def _mismatch(self, flat: _Flat) -> dict[str, float]:
        """How far the batch is off-policy. Without proximal logprobs the update's forward pass stands in."""
        trained = flat.proximal_logprobs
        if self._settings.trainer.proximal == "rollout":
            trained = self.ranks.sum(flat.seen_logprobs)
        return losses.mismatch_metrics(trained, flat.rollout_logprobs, flat.importance_weights)

    def _forward(self, row: PackedRow) -> tuple[torch.Tensor, torch.Tensor]:
        return response_logprobs(self.model, row, temperature=self._settings.rollout.sampling.temperature)

    def _optimizer_step(self, rows: Sequence[PackedRow], flat: _Flat) -> dict[str, float]:
        """Train on one mini-batch; {} if the step was skipped."""
        options = self._settings.trainer
        totals = torch.zeros(5, dtype=torch.float64, device=self.ranks.device)
        for row in rows:
            logprobs_N, entropy_N = self._forward(row)
            result = losses.policy_loss(
                logprobs_N,
                flat.proximal_logprobs[row.places_N],
                flat.advantages[row.places_N],
                flat.importance_weights[row.places_N],
                token_weights_N=flat.token_weights[row.places_N],
                clip_low=options.clip_low,
                clip_high=options.clip_high,
            )
            (result.loss * self.ranks.size).backward()  # FSDP takes the mean over ranks, the loss is a sum
            flat.seen_logprobs[row.places_N] = logprobs_N.detach()
            parts = (result.loss.detach(), entropy_N.sum(), result.clipped, result.nonfinite)
            totals += torch.stack([*(part.double() for part in parts), totals.new_tensor(len(entropy_N))])
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), options.grad_clip)
        grad_norm = whole(norm).item()
        loss, entropy, clipped, nonfinite, tokens = self.ranks.sum(totals).tolist()
        if not math.isfinite(loss + grad_norm):
            self._skip(loss, grad_norm)
            return {}
        self._skipped_in_a_row = 0
        self._optimizer.step()
        self._optimizer.zero_grad()
        return {
            "loss": loss,
            "grad_norm": grad_norm,
            "entropy": entropy / max(1.0, tokens),
            "clip_ratio": clipped / max(1.0, tokens),
            "nonfinite_log_ratios": nonfinite,
        }

    def _skip(self, loss: float, grad_norm: float) -> None:
        self._optimizer.zero_grad()
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= MAX_SKIPPED_STEPS:
            raise RunError(
                f"{self._skipped_in_a_row} optimizer steps in a row were not finite, the last one a loss "
                f"of {loss} and a gradient norm of {grad_norm}. Expected finite numbers; lower `trainer.lr` "
                "and resume from the newest checkpoint."
            )
