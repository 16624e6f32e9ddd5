"""Loads a loss that the user has written, tries it out before the run, and checks what it returns.

Invariants: built-in losses are not wrapped; a user's loss is called once on made-up tokens before a run, so
that an error of the first step is reported before the first response; a later exception or wrong result is a
PluginError with file and line; the loss never gets a row without tokens; every row has a backward pass,
whatever the loss returns or raises.
"""

import inspect
from collections.abc import Mapping
from dataclasses import fields
from functools import wraps
from typing import Any

import torch

from protocol.blame import shown, what, where, where_class
from protocol.errors import ConfigError, PluginError
from protocol.importing import load_object
from protocol.settings import TrainerSettings
from workers.models.out_of_memory import is_of_memory
from workers.trainer import losses
from workers.trainer.losses import LOSSES, Loss, TokenLoss, Tokens
from workers.trainer.losses.policy import PolicyLoss

EXPECTED = (
    "a tensor with one number per token, shape [N] as `tokens.logprobs` has it, made from `tokens.logprobs`; "
    "or that and a second one, boolean, that says where a bound is active (docs/algorithms.md)"
)
GOES_ON = "; a run that ended so goes on with the same command"


def load_loss(name: str, settings: TrainerSettings, device: torch.device) -> Loss:
    """The loss that `trainer.loss` names.

    Raises: ConfigError if it cannot be called, or fails on made-up tokens.
    """
    if name in LOSSES:
        return LOSSES[name]
    loss = _held(load_object(name))
    try:
        _try_out(loss, _made_up(settings, device))
    except PluginError as error:
        raise ConfigError(str(error).replace(GOES_ON, "")) from error
    return _for_any_row(loss)


def answer(question: Mapping[str, str]) -> list[tuple[str, str]]:
    """Errors of the loss `name` under the trainer's `settings`, in a child process (`protocol.asking`)."""
    try:
        settings = TrainerSettings.model_validate_json(question["settings"])
        is_on_gpu = settings.device != "cpu" and torch.cuda.is_available()
        load_loss(question["name"], settings, torch.device("cuda" if is_on_gpu else "cpu"))
    except ConfigError as error:
        return [("error", str(error).removeprefix("trainer.loss: "))]
    return []


def _try_out(loss: Loss, tokens: Tokens) -> None:
    result = loss(tokens)
    loss_N = result[0] if isinstance(result, tuple) else result
    if not loss_N.requires_grad:
        raise PluginError(
            f"trainer.loss: {where(loss)} returned a loss that does not depend on `tokens.logprobs`, so that "
            f"there is nothing to learn from. Expected {EXPECTED}. Leave `detach()` and `item()` out where "
            "the gradient should flow."
        )
    backward(loss_N.sum(), loss, tokens)


def backward(total: torch.Tensor, function: Loss, tokens: Tokens) -> None:
    """Backpropagate `total`, which `function` has computed from the tokens.

    Raises: PluginError if a user's function fails before the gradient has reached `tokens.logprobs`; in all
    other cases, and if memory ran out, whatever torch or a hook raises.
    """
    arrived: list[bool] = []
    hook = None
    if function not in LOSSES.values() and tokens.logprobs.requires_grad:
        hook = tokens.logprobs.register_hook(lambda _: arrived.append(True))
    try:
        total.backward()
    except Exception as error:  # whatever the user's code raises
        if hook is None or arrived or is_of_memory(error):
            raise
        raise _failure(
            f"the gradient of what {where(function, error)} returned raised {what(error)}", tokens
        ) from error
    finally:
        if hook is not None:
            hook.remove()


class RowGradients:
    """Adds the gradients of rows, one after the other.

    Among several ranks an error of the user's function does not end the rows of its rank: the others wait for
    it in every layer. Its gradient is 0 from then on, and `error` says what the step has to end with.
    """

    def __init__(self, loss: Loss, *, ranks: int) -> None:
        self._loss, self._ranks = loss, ranks
        self.error: PluginError | None = None

    def add(self, tokens: Tokens) -> PolicyLoss:
        """Add the gradient of a row; returns its loss. Raises: PluginError if there are no other ranks."""
        try:
            return self._add(tokens, self._loss if self.error is None else _nothing)
        except PluginError as error:
            if self._ranks == 1:
                raise
            self.error = error
        return self._add(tokens, _nothing)

    def _add(self, tokens: Tokens, loss: Loss) -> PolicyLoss:
        result = losses.policy_loss(tokens, loss)
        # FSDP takes the mean over ranks, the loss is a sum
        backward(result.loss * self._ranks, loss, tokens)
        return result


def _nothing(tokens: Tokens) -> torch.Tensor:
    """0 for every token, with a gradient of 0."""
    return torch.where(torch.isfinite(tokens.logprobs), tokens.logprobs, 0.0) * 0


def _for_any_row(function: Loss) -> Loss:
    """Wrap a loss: 0 for a row without tokens, and a gradient for any row, which may be 0.

    FSDP sums gradients in the backward pass: it hangs if one rank's loss has none.
    """

    @wraps(function)
    def loss(tokens: Tokens) -> TokenLoss | torch.Tensor:
        nothing_N = _nothing(tokens)
        if not len(nothing_N):
            return nothing_N
        result = function(tokens)
        if isinstance(result, tuple):
            return TokenLoss(result[0] + nothing_N, result[1])
        return result + nothing_N

    return loss


def _held(function: Any) -> Loss:
    if inspect.isclass(function):
        raise ConfigError(
            f"trainer.loss: {where_class(function)} is a class; expected a function that is called with "
            f"(tokens). Make one object in that file, `loss = {function.__name__}()`, and name `loss`."
        )
    if not callable(function):
        raise ConfigError(
            f"trainer.loss is {shown(function)}; expected a function that is called with (tokens)."
        )

    @wraps(function)
    def loss(tokens: Tokens) -> Any:
        given = _tensors(tokens)
        before = [tensor._version for _, tensor in given]
        try:
            result = function(tokens)
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            if is_of_memory(error):
                raise
            raise _failure(f"{where(function, error)} raised {what(error)}", tokens) from error
        for (name, tensor), version in zip(given, before, strict=True):
            if tensor._version != version:
                told = "in place, and the step goes on to compute with it; make a new tensor"
                raise _failure(f"{where(function)} has changed `tokens.{name}` {told}", tokens)
        parts: tuple[Any, ...] = result if isinstance(result, tuple) else (result,)
        if (isinstance(result, tuple) and len(parts) != 2) or not all(
            isinstance(part, torch.Tensor) for part in parts
        ):
            raise _failure(f"{where(function)} returned {shown(result)}", tokens)
        for part in parts:
            if part.shape != tokens.logprobs.shape:
                raise _failure(f"{where(function)} returned a tensor of shape {list(part.shape)}", tokens)
        if isinstance(result, tuple) and parts[1].dtype is not torch.bool:  # `clip_ratio` counts it
            raise _failure(f"{where(function)} returned a second tensor of {parts[1].dtype}", tokens)
        return result

    return loss


def _tensors(tokens: Tokens) -> list[tuple[str, torch.Tensor]]:
    all_fields = ((field.name, getattr(tokens, field.name)) for field in fields(tokens))
    return [(name, value) for name, value in all_fields if isinstance(value, torch.Tensor)]


def _failure(how: str, tokens: Tokens) -> PluginError:
    count, responses = len(tokens.logprobs), len(tokens.sequences.unique())
    return PluginError(
        f"trainer.loss: {how}. It was given {count} response tokens of {responses} "
        f"responses; expected {EXPECTED}. Mend the function{GOES_ON}."
    )


def _made_up(settings: TrainerSettings, device: torch.device) -> Tokens:
    """Seven tokens of two responses, of three versions, with advantages of both signs."""
    logprobs_N = torch.tensor([-0.1, -2.0, -0.7, -1.3, -0.4, -3.0, -0.2], device=device)
    plain_N = logprobs_N.clone()
    logprobs_N.requires_grad_()
    return Tokens(
        logprobs=logprobs_N,
        entropy=torch.full_like(plain_N, 1.5),
        proximal_logprobs=plain_N + plain_N.new_tensor([0.0, 0.1, -0.1, 0.0, 0.3, -0.3, 0.0]),
        rollout_logprobs=plain_N + 0.05,
        reference_logprobs=plain_N - 0.2 if settings.kl_coefficient > 0 else None,
        advantages=plain_N.new_tensor([1.0, 1.0, 1.0, -0.5, -0.5, -0.5, -0.5]),
        importance_weights=torch.ones_like(plain_N),
        token_weights=torch.full_like(plain_N, 1 / 7),
        sequences=torch.tensor([0, 0, 0, 1, 1, 1, 1], device=device),
        policy_versions=torch.tensor([3, 3, 4, 2, 2, 3, 4], device=device),
        settings=settings,
    )
