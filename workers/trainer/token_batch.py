"""A batch's sampled tokens on the device, and the corrections that the loss applies to them.

Invariants: token weights are fixed by lengths before anything is masked or rejected; corrections are computed
from the weights before the optimizer step that uses them; a row of tokens holds whole responses.

Shapes: N sampled tokens of the batch, concatenated in its order; n those of one row; B trajectories; E
episodes, which are the trajectories of a run without an agent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from protocol.messages import Train
from protocol.settings import TrainerSettings, WorkerSettings
from workers.trainer import losses
from workers.trainer.batch import TrainBatch
from workers.trainer.losses import Tokens
from workers.trainer.ranks import Ranks


@dataclass(slots=True)
class TokenBatch:
    """All [N]; float32 unless another type is named."""

    rollout_logprobs: torch.Tensor
    proximal_logprobs: torch.Tensor  # as computed beforehand; else filled in as rows are corrected
    reference_logprobs: torch.Tensor | None  # None without a KL coefficient
    values: torch.Tensor | None  # of the critic before the update; None without one
    advantages: torch.Tensor
    returns: torch.Tensor
    token_weights: torch.Tensor  # normalized per mini-batch; 0 where a response is masked
    sequences: torch.Tensor  # int64
    groups: torch.Tensor  # int64, an index from 0
    policy_versions: torch.Tensor  # int64
    oldest_versions: torch.Tensor  # int64: of the token's response
    seen_logprobs: torch.Tensor  # filled in by the update: under the weights before each optimizer step
    seen_entropy: torch.Tensor  # of the same distributions
    importance_weights: torch.Tensor
    loss_factors: torch.Tensor  # 0 where rejection leaves a token out
    bounded: torch.Tensor  # 1 where a bound has changed the importance weight
    rejected: torch.Tensor  # 1 where rejection has touched the token


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """Results of passes without gradient, [N] each, on every rank; None for a pass that was not needed."""

    logprobs: torch.Tensor | None
    entropy: torch.Tensor | None
    reference_logprobs: torch.Tensor | None
    values: torch.Tensor | None


def needs_own_pass(options: TrainerSettings) -> bool:
    """Whether proximal logprobs need a forward pass of their own.

    With one optimizer step per batch, the training pass starts from the very weights of the proximal
    logprobs, so it gives them for free, unless they are needed for the whole batch beforehand.
    """
    if options.proximal != "recompute":
        return False
    is_reward_kl = options.kl_coefficient > 0 and options.kl_in == "reward"
    is_group_judged = options.rejection == "group" or (options.rejection, options.rejection_action) == (
        "sequence",
        "drop",
    )
    return options.minibatches > 1 or is_reward_kl or is_group_judged


def make_token_batch(
    batch: TrainBatch,
    minibatches: Sequence[Sequence[int]],
    evaluated: ForwardPass,
    *,
    settings: WorkerSettings,
    device: torch.device,
) -> TokenBatch:
    """Everything about the batch that does not change while it is trained on."""
    options = settings.trainer
    rollout_N = torch.from_numpy(batch.rollout_logprobs).to(device)
    lengths_B = torch.tensor(batch.response_lengths)
    groups_B = torch.unique(torch.tensor(batch.groups), return_inverse=True)[1]
    proximal_N = rollout_N if evaluated.logprobs is None else evaluated.logprobs
    targets = _targets(batch, lengths_B, proximal_N, evaluated=evaluated, options=options)
    zeros_N = torch.zeros_like(rollout_N)
    sequences_N = torch.arange(len(lengths_B)).repeat_interleave(lengths_B).to(device)
    versions_N = torch.from_numpy(batch.policy_versions).to(device)
    flat = TokenBatch(
        rollout_logprobs=rollout_N,
        proximal_logprobs=proximal_N.clone(),
        reference_logprobs=evaluated.reference_logprobs,
        values=evaluated.values,
        advantages=targets[0],
        returns=targets[1],
        token_weights=_token_weights(batch, minibatches, settings=settings).to(device),
        sequences=sequences_N,
        groups=groups_B.repeat_interleave(lengths_B).to(device),
        policy_versions=versions_N,
        oldest_versions=-losses.over(sequences_N, -versions_N, "max"),
        seen_logprobs=zeros_N.clone(),
        seen_entropy=zeros_N.clone() if evaluated.entropy is None else evaluated.entropy,
        importance_weights=zeros_N.clone(),
        loss_factors=zeros_N.clone(),
        bounded=zeros_N.clone(),
        rejected=zeros_N.clone(),
    )
    if evaluated.logprobs is not None:
        correct(flat, torch.arange(len(rollout_N), device=device), evaluated.logprobs, options=options)
    return flat


class Counted(NamedTuple):
    """Lengths and groups of episodes, the units of means and divisors, for trajectories of whole episodes."""

    lengths_E: torch.Tensor  # sampled tokens of each episode, all its trajectories together
    groups_E: torch.Tensor  # index of its group
    episodes_B: torch.Tensor  # index of each trajectory's episode


def count_episodes(batch: TrainBatch, indices: Sequence[int]) -> Counted:
    """The episodes of the trajectories `indices`."""
    chosen = list(indices)
    episodes_B = torch.unique(torch.tensor(batch.episodes)[chosen], return_inverse=True)[1]
    groups_B = torch.unique(torch.tensor(batch.groups)[chosen], return_inverse=True)[1]
    lengths_E = torch.zeros(int(episodes_B.max()) + 1, dtype=torch.int64)
    lengths_E.index_add_(0, episodes_B, torch.tensor(batch.response_lengths)[chosen])
    groups_E = torch.zeros_like(lengths_E)
    groups_E[episodes_B] = groups_B
    return Counted(lengths_E, groups_E, episodes_B)


def _token_weights(
    batch: TrainBatch, minibatches: Sequence[Sequence[int]], *, settings: WorkerSettings
) -> torch.Tensor:
    """Token weights [N], normalized per mini-batch; 0 for masked tokens."""
    options, lengths_B = settings.trainer, torch.tensor(batch.response_lengths)
    weights = []
    for some in minibatches:
        chosen = list(some)
        counted = count_episodes(batch, chosen)
        weights_E = losses.response_weights(
            counted.lengths_E,
            options.loss_aggregation,
            groups=counted.groups_E,
            max_tokens=settings.rollout.max_response_tokens,
        )
        weights.append(weights_E[counted.episodes_B].repeat_interleave(lengths_B[chosen]))
    weights_N = torch.cat(weights).to(torch.float32)
    if not options.is_supervised:
        weights_N[~torch.isfinite(torch.from_numpy(batch.rollout_logprobs))] = 0.0
    if options.mask_truncated:
        weights_N[torch.tensor(batch.is_truncated).repeat_interleave(lengths_B)] = 0.0
    return weights_N


def _targets(
    batch: TrainBatch,
    lengths_B: torch.Tensor,
    logprobs_N: torch.Tensor,
    *,
    evaluated: ForwardPass,
    options: TrainerSettings,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns of every token.

    A KL penalty lowers the reward-to-go of its own token and of all tokens before it in the response. It does
    so too beside a turn's own advantage, which is made of the rewards from that turn on. Source: REINFORCE++
    (arXiv 2501.03262): the outcome less the penalties to come.
    """
    outcomes_N = torch.from_numpy(batch.advantages).to(logprobs_N.device)
    is_reward_kl = evaluated.reference_logprobs is not None and options.kl_in == "reward"
    advantages_N = returns_N = outcomes_N
    if is_reward_kl or evaluated.values is not None:
        penalties_N = torch.zeros_like(outcomes_N)
        if is_reward_kl and evaluated.reference_logprobs is not None:
            ratio_N = losses.log_ratio(evaluated.reference_logprobs, logprobs_N)
            penalties_N = options.kl_coefficient * losses.kl_estimate(ratio_N, options.kl_estimator)
        outcomes_B = torch.from_numpy(batch.outcomes).to(outcomes_N.device)
        if batch.is_by_turn:
            outcomes_B = torch.zeros_like(outcomes_B)  # each turn's is added below
        values_N = torch.zeros_like(outcomes_N) if evaluated.values is None else evaluated.values
        advantages_N, returns_N = losses.generalized_advantages(
            losses.token_rewards(outcomes_B, lengths_B.to(outcomes_N.device), penalties_N),
            values_N,
            lengths_B,
            gamma=options.gamma,
            gae_lambda=1.0 if evaluated.values is None else options.gae_lambda,
        )
        if batch.is_by_turn:
            advantages_N, returns_N = advantages_N + outcomes_N, returns_N + outcomes_N
    if options.baseline == "batch_mean" or options.advantage_scale == "batch_std":
        advantages_N = losses.standardized(advantages_N, is_scaled=options.advantage_scale == "batch_std")
    return advantages_N, returns_N


def correct(
    flat: TokenBatch, places_n: torch.Tensor, trained_logprobs_n: torch.Tensor, *, options: TrainerSettings
) -> None:
    """Fill in the corrections of the tokens at `places_n`, from logprobs under the current weights."""
    rollout_n, sequences_n = flat.rollout_logprobs[places_n], flat.sequences[places_n]
    importance = losses.importance_weights(
        flat.proximal_logprobs[places_n],
        rollout_n,
        sequences_n,
        advantages_N=flat.advantages[places_n],
        kind=options.importance,
        level=options.importance_level,
        low=options.importance_low,
        cap=options.importance_cap,
    )
    flat.importance_weights[places_n] = importance.weights_N
    flat.loss_factors[places_n] = 1.0
    flat.bounded[places_n] = importance.bounded_N.to(flat.bounded.dtype)
    if options.rejection == "none":
        return
    rejected = losses.rejection(
        trained_logprobs_n,
        rollout_n,
        sequences_N=sequences_n,
        groups_N=flat.groups[places_n],
        level=options.rejection,
        action=options.rejection_action,
        metric=options.rejection_metric,
        aggregate=options.rejection_aggregate,
        bounds=options.rejection_bounds,
    )
    flat.rejected[places_n] = rejected.rejected_N.to(flat.rejected.dtype)
    flat.loss_factors[places_n] = rejected.factors_N


def tokens_of(
    flat: TokenBatch,
    places_n: torch.Tensor,
    logprobs_n: torch.Tensor,
    entropy_n: torch.Tensor,
    *,
    options: TrainerSettings,
    train_version: int,
) -> Tokens:
    """The loss's input for one row, corrected by the row's own logprobs unless an earlier pass did so."""
    seen_n = logprobs_n.detach()
    flat.seen_logprobs[places_n] = seen_n
    if not needs_own_pass(options):
        flat.seen_entropy[places_n] = entropy_n.detach()
        if options.proximal == "recompute":
            flat.proximal_logprobs[places_n] = seen_n
        elif options.proximal == "loglinear":
            flat.proximal_logprobs[places_n] = losses.loglinear_proximal(
                seen_n,
                flat.rollout_logprobs[places_n],
                flat.policy_versions[places_n],
                train_version=train_version,
            )
        correct(flat, places_n, seen_n, options=options)
    reference_N = flat.reference_logprobs
    return Tokens(
        logprobs=logprobs_n,
        entropy=entropy_n,
        proximal_logprobs=flat.proximal_logprobs[places_n],
        rollout_logprobs=flat.rollout_logprobs[places_n],
        reference_logprobs=None if reference_N is None else reference_N[places_n],
        advantages=flat.advantages[places_n],
        importance_weights=flat.importance_weights[places_n],
        token_weights=flat.token_weights[places_n] * flat.loss_factors[places_n],
        sequences=torch.unique(flat.sequences[places_n], return_inverse=True)[1],
        policy_versions=flat.policy_versions[places_n],
        settings=options,
    )


def correction_metrics(
    flat: TokenBatch, ranks: Ranks, *, options: TrainerSettings, train_version: int
) -> dict[str, float]:
    """Metrics of the corrections as shares of the batch's tokens, after the update has filled them in.

    Collective. Mismatch, engine and importance weights as in workers/trainer/losses/metrics.py; `bounded` is
    the share of weights that a bound has changed, `rejected` that of tokens that rejection has touched,
    `masked` that of tokens with weight 0, because their response was cut off or they have no rollout logprob.
    For supervised training only `perplexity`.
    """
    trained_N = flat.proximal_logprobs
    if not needs_own_pass(options):  # then each rank has corrected only its own rows
        filled = (
            flat.seen_logprobs, flat.seen_entropy, flat.importance_weights, flat.loss_factors, flat.bounded,
            flat.rejected,
        )  # fmt: skip
        for filled_N in filled:
            ranks.sum(filled_N)
            filled_N /= options.sequence_ranks  # ranks that share a row have each filled in all of it
        trained_N = flat.seen_logprobs
    if options.is_supervised:
        return {"perplexity": trained_N.mean().neg().exp().item()}
    metrics = losses.mismatch_metrics(trained_N, flat.rollout_logprobs, flat.importance_weights)
    if options.minibatches == 1 or needs_own_pass(options):  # else later mini-batches have seen other weights
        metrics |= losses.engine_metrics(
            trained_N,
            flat.rollout_logprobs,
            flat.seen_entropy,
            is_fresh_N=flat.oldest_versions == train_version,
        )
    shares = {
        "importance_weight/bounded": flat.bounded,
        "tokens/rejected_share": flat.rejected,
        "tokens/masked_share": flat.token_weights == 0,
    }
    count = max(1, len(flat.token_weights))
    return metrics | {name: touched_N.sum().item() / count for name, touched_N in shares.items()}


class CorrectedTokens(NamedTuple):
    """The corrected tokens of kept samples, as in `TrainStepFinished.corrected`, with its two frames."""

    places: tuple[tuple[int, int, int], ...] = ()  # (group, member, sampled tokens)
    frames: tuple[bytes, ...] = ()  # trained logprobs, token weights: float32


def corrections_of(train: Train, flat: TokenBatch, *, options: TrainerSettings) -> CorrectedTokens:
    """The corrections of the groups in `train.samples`, after the update has filled in the batch.

    A token's logprob is under the weights before the update; if mini-batches have no pass of their own, under
    the weights that its own optimizer step started from. A masked or rejected token has weight 0, whatever
    its importance weight.
    """
    wanted, begin = set(train.samples), 0
    places: list[tuple[int, int, int]] = []
    spans: list[torch.Tensor] = []
    for item in train.items:
        end = begin + item.sampled_tokens
        if item.group in wanted:
            places.append((item.group, item.member, end - begin))
            spans.append(torch.arange(begin, end))
        begin = end
    if not places:
        return CorrectedTokens()
    chosen_n = torch.cat(spans).to(flat.seen_logprobs.device)
    trained_N = flat.proximal_logprobs if needs_own_pass(options) else flat.seen_logprobs
    weights_n = (flat.importance_weights * flat.loss_factors)[chosen_n]
    weights_n = torch.where(flat.token_weights[chosen_n] == 0, 0.0, weights_n)
    logprobs_n = trained_N[chosen_n].clamp(max=0.0)
    return CorrectedTokens(tuple(places), (_bytes(logprobs_n), _bytes(weights_n.nan_to_num(0.0))))


def _bytes(numbers_n: torch.Tensor) -> bytes:
    return numbers_n.detach().to("cpu", torch.float32).numpy().astype("<f4").tobytes()
