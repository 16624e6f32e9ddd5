"""The critic: a copy of the initial model with a head that gives a value instead of logits.

Invariants: it is sharded, packed and checkpointed like the policy; its head starts at 0, so its first values
are all 0; a token's value is that of the state before it, so it never sees that token.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from protocol.errors import RunError
from protocol.settings import TrainerSettings
from workers.trainer import losses
from workers.trainer.packed_forward import PackedRow, forward_row
from workers.trainer.ranks import Ranks
from workers.trainer.saved.shares import Shares
from workers.trainer.sharding import accumulated, make_optimizer, shard, whole
from workers.trainer.state import missing_weights, restore_state
from workers.trainer.token_batch import TokenBatch

CRITIC = "critic/"  # prefix of its tensors in a checkpoint
CAP = "final_logit_softcapping"  # of the logits, in the configurations of Gemma and others
CRITIC_MEANS = ("critic/loss", "critic/grad_norm", "critic/clip_ratio")  # means over steps or tokens


class ValueStep(NamedTuple):
    """The numbers of one optimizer step, summed over ranks; its gradients wait for `finish`."""

    loss: float
    clipped: float  # tokens where the value clip is active
    grad_norm: float

    def metrics(self, tokens: float) -> dict[str, float]:
        """The critic's metrics, under their names in metrics.jsonl. `tokens`: response tokens of the step."""
        clip_ratio = self.clipped / max(1.0, tokens)
        return dict(zip(CRITIC_MEANS, (self.loss, self.grad_norm, clip_ratio), strict=True))


class Critic:
    """One rank's share of the critic. Every method is collective."""

    def __init__(
        self, model: PreTrainedModel, ranks: Ranks, *, options: TrainerSettings, forward_dtype: torch.dtype
    ) -> None:
        """Turn a causal language model into a critic."""
        self.model, self._ranks, self._options = model, ranks, options
        output = model.get_output_embeddings()
        assert output is not None, "a causal language model has a head"
        head = torch.nn.Linear(output.in_features, 1, bias=False, device=ranks.device)
        torch.nn.init.zeros_(head.weight)
        model.config.tie_word_embeddings = False
        if getattr(config := model.config.get_text_config(), CAP, None) is not None:
            setattr(config, CAP, None)  # a reward may be above it
        model.set_output_embeddings(head)
        shard(model, ranks, options, dtype=forward_dtype)
        self.optimizer = make_optimizer(model, options.model_copy(update={"lr": options.critic_lr}))

    def restore(self, state: Shares, path: str | Path) -> None:
        """Continue from the critic's part of the checkpoint at `path`. Raises: RunError if it has none."""
        if missing_weights(self.model, state, prefix=CRITIC):
            raise RunError(
                f"{path} has no critic, but `trainer.baseline: value` trains one. Resume with the "
                "algorithm that wrote it, or begin a new run from its weights."
            )
        restore_state(self.model, self.optimizer, self._ranks, state, prefix=CRITIC)

    def values(self, row: PackedRow) -> torch.Tensor:
        """Values of the row's response tokens, [N], float32."""
        return forward_row(self.model, row).squeeze(-1).float()

    def gradients(self, rows: Sequence[PackedRow], flat: TokenBatch) -> ValueStep:
        """Compute the gradients of one mini-batch, clipped like the policy's."""
        assert flat.values is not None, "a critic trains on the values that it gave before the update"
        totals = torch.zeros(2, dtype=torch.float64, device=self._ranks.device)
        for row in accumulated(self.model, rows, self._ranks, options=self._options):
            result = losses.value_loss(
                self.values(row),
                flat.values[row.places_N],
                flat.returns[row.places_N],
                token_weights_N=flat.token_weights[row.places_N],
                clip=self._options.value_clip,
            )
            (result.loss * self._ranks.size).backward()  # FSDP takes the mean over ranks, the loss is a sum
            totals += torch.stack([result.loss.detach().double(), result.clipped.double()])
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._options.grad_clip)
        loss, clipped = self._ranks.sum(totals).tolist()
        return ValueStep(loss, clipped, whole(norm).item())

    def finish(self, *, is_taken: bool, lr_share: float) -> None:
        """Take the step of the computed gradients, or drop them. `lr_share`: share of the peak rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = self._options.critic_lr * lr_share
        if is_taken:
            self.optimizer.step()
        self.optimizer.zero_grad()
