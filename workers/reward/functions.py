"""Adapts every supported shape of reward function to one coroutine function.

Invariants: pure; a function's arguments are chosen by the names of its parameters alone; every returned value
is checked, so a scorer returns one finite float per member or raises; if a function changes its arguments, no
other response sees that. docs/rewards.md shows each shape.
"""

import asyncio
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from protocol.errors import ConfigError
from protocol.messages import MAX_REWARD
from protocol.rewards.scalars import plain_number
from protocol.rewards.shapes import MESSAGES, TURNS, Signature, missing_problem, shape_problem
from workers.reward.begun_answers import NOTHING, with_answer

TOKEN_IDS = ("prompt_ids", "completion_ids")


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A group to score; the lists have one entry per member."""

    group: int
    row: Mapping[str, Any]  # the data row, all columns
    prompt: Any  # a string or a list of chat messages, as the row has it
    prompt_ids: list[int]
    completions: list[str]
    completion_ids: list[list[int]]
    endings: list[str]  # "stop" or "length"
    turns: list[list[str]] | None = None  # sampled turns as text, per member; None outside episodes
    talks: list[list[Any]] | None = None  # messages of episodes, per member; [] if it was held in tokens

    @property
    def has_messages(self) -> bool:
        """Whether conversations can be offered; a data column of that name takes precedence."""
        return MESSAGES not in self.row and (self.talks is not None or isinstance(self.prompt, list))

    def messages(self, member: int) -> list[Any]:
        """A conversation with the policy's answers, as chat messages."""
        if self.talks is not None:
            return self.talks[member]
        wanted = self.row.get("chat_template_kwargs")
        wanted = wanted if isinstance(wanted, Mapping) else NOTHING
        return with_answer(self.prompt, self.completions[member], wanted)


Scorer = Callable[[ScoreRequest], Awaitable[list[float]]]


TEXTS = (
    "(If it came from a completion: each is a text here, also where the prompt is a list of messages, for "
    'which TRL gives [{"role": "assistant", "content": text}]. '
    'Take `completion` for `completion[0]["content"]`.)'
)


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


def adapt(function: Any) -> Scorer:
    """A coroutine function that scores a group with the user's function, sync or async.

    The scorer raises ConfigError if the function needs a column that the row lacks, or does not return a
    finite number per member; exceptions of the function itself pass through. Raises: ConfigError if the
    signature is not one of the supported shapes.
    """
    signature = _read_signature(function)
    if signature.is_per_group:
        return lambda request: _score_group(function, signature, request)
    if "solution_str" in signature.names:
        return lambda request: _score_members(function, signature, request, offer=_offer_solution)
    return lambda request: _score_members(function, signature, request, offer=_offer_member)


def is_async(function: Any) -> bool:
    """Whether a call of the function leaves the event loop free while it waits.

    `async def`, also as `__call__`, in a functools.partial, or below decorators that use functools.wraps.
    """
    bare = inspect.unwrap(function)
    called = getattr(bare, "__call__", None)  # noqa: B004  # its code is asked for, not whether it has one
    return inspect.iscoroutinefunction(bare) or inspect.iscoroutinefunction(called)


def is_per_response(function: Any) -> bool:
    """Whether the function is called once per response, and not once per group.

    Raises: ConfigError as `adapt` does.
    """
    return not _read_signature(function).is_per_group


def _read_signature(function: Any) -> Signature:
    if not callable(function) or inspect.isclass(function):
        raise ConfigError(
            f"The reward function is {type(function).__name__} {function!r:.80}; expected a function or "
            "another callable object. Name the function itself."
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"The reward function's signature cannot be read: {error}. Wrap it in a `def`."
        ) from None
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    signature = Signature(
        tuple(p.name for p in named if p.default is p.empty),
        tuple(p.name for p in named),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
        tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY),
    )
    if problem := shape_problem(signature):
        raise ConfigError(f"The reward function {problem}")
    return signature


def _own(name: str, value: object) -> object:
    """A copy that the function may change; a fast one for token ids, which are long and flat."""
    return [*value] if name in TOKEN_IDS and isinstance(value, list) else deepcopy(value)


async def _score_group(
    function: Callable[..., Any], signature: Signature, request: ScoreRequest
) -> list[float]:
    """Source: TRL's reward functions: parallel lists, every column of the data repeated per completion."""
    count = len(request.completions)
    offered = {name: [value] * count for name, value in request.row.items()} | {
        "prompts": [request.prompt] * count,
        "completions": request.completions,
        "prompt_ids": [request.prompt_ids] * count,
        "completion_ids": request.completion_ids,
        "endings": request.endings,
        "group": request.group,
        **({} if request.turns is None else {TURNS: request.turns}),
        **({MESSAGES: [*map(request.messages, range(count))]} if request.has_messages else {}),
    }
    chosen = _choose(offered, signature, request)
    try:
        result = function(**{
            name: [_own(name, one) for one in value] if isinstance(value, list) else value
            for name, value in chosen.items()
        })  # fmt: skip
        if inspect.isawaitable(result):
            result = await result
    except TypeError as error:
        if "string indices" in str(error):  # as of completion[0]["content"]
            error.add_note(TEXTS)
        raise
    values = result.tolist() if hasattr(result, "tolist") else result
    if not isinstance(values, list | tuple):
        raise ConfigError(
            f"The reward function returned {_show(result)}; expected a list of {count} numbers, "
            "one per completion."
        )
    if len(values) != count:
        raise ConfigError(
            f"The reward function returned {_show(result)}, of length {len(values)}; expected {count}, "
            "one per completion."
        )
    return [_check(value, member) for member, value in enumerate(values)]


async def _score_members(
    function: Callable[..., Any],
    signature: Signature,
    request: ScoreRequest,
    *,
    offer: Callable[[ScoreRequest, int], dict[str, Any]],
) -> list[float]:
    """One call per member; the calls of an async function run side by side."""
    members = range(len(request.completions))
    arguments = [_choose(offer(request, member), signature, request) for member in members]
    results = [function(**{name: _own(name, value) for name, value in one.items()}) for one in arguments]
    if any(inspect.isawaitable(result) for result in results):
        results = await asyncio.gather(*map(_outcome, results))
        for result in results:
            if isinstance(result, _Raised):
                raise result.error
    return [_check(value, member) for member, value in enumerate(results)]


async def _outcome(result: Any) -> Any:
    """The result of a call, or its exception: SystemExit would end the event loop from within a task."""
    try:
        return await result if inspect.isawaitable(result) else result
    except BaseException as error:
        return _Raised(error)


def _offer_member(request: ScoreRequest, member: int) -> dict[str, Any]:
    """Source: AReaL's reward functions, and the named arguments of verifiers' rubrics."""
    return {
        **request.row,
        "prompt": request.prompt,
        "completion": request.completions[member],
        "prompt_ids": request.prompt_ids,
        "completion_ids": request.completion_ids[member],
        "ending": request.endings[member],
        "group": request.group,
        **({} if request.turns is None else {TURNS: request.turns[member]}),
        **({MESSAGES: request.messages(member)} if request.has_messages else {}),
    }


def _offer_solution(request: ScoreRequest, member: int) -> dict[str, Any]:
    """Source: verl's compute_score; the truth is looked for where verl's data and plain data keep it."""
    offered = {"data_source": "", "extra_info": None} | _offer_member(request, member)
    offered["solution_str"] = request.completions[member]
    nested = request.row.get("reward_model")
    if "ground_truth" not in offered:
        if isinstance(nested, Mapping) and "ground_truth" in nested:
            offered["ground_truth"] = nested["ground_truth"]
        elif "answer" in offered:
            offered["ground_truth"] = offered["answer"]
    return offered


def _choose(offered: dict[str, Any], signature: Signature, request: ScoreRequest) -> dict[str, Any]:
    if problem := missing_problem(signature, offered, request.row):
        raise ConfigError(f"The reward function {problem}")
    if signature.takes_any:
        return offered
    return {name: value for name, value in offered.items() if name in signature.names}


def _check(value: Any, member: int) -> float:
    number = plain_number(value.get("score") if isinstance(value, Mapping) else value)
    if isinstance(number, bool | numbers.Real):
        try:
            reward = float(number)
        except OverflowError:
            reward = math.inf
        if math.isfinite(reward) and abs(reward) <= MAX_REWARD:
            return reward
    raise ConfigError(
        f"The reward function returned {_show(value)} for member {member}; expected a finite number, of at "
        f"most {MAX_REWARD:g} in size."
    )


def _show(value: Any) -> str:
    return f"{value!r:.120} of type {type(value).__module__}.{type(value).__name__}".replace("builtins.", "")
