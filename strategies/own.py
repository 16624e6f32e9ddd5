"""Wraps a strategy of the user's, so that every wrong answer becomes a clear error.

Invariants: the function gets the core's own arguments; its answer is checked against them as they were given,
whatever it has done to their lists, and converted to plain numbers; an exception, or an answer that the core
could not act on, is a PluginError with the key of the configuration, file and line, the arguments and the
expected answer. Built-in strategies are not wrapped.
"""

import inspect
import math
import operator
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, cast

from protocol.blame import shown, what, where, where_class
from protocol.errors import ConfigError, PluginError
from strategies.views import WorkView

GOES_ON = "; a run that ended so goes on with the same command"
Foreign = Any  # a function of the user's, or its answer: checked here before use
Arguments = tuple[Foreign, ...]


class Unusable(Exception):
    """An answer that the core cannot act on; the text continues the sentence after the answer."""


@contextmanager
def outside_a_run() -> Generator[None]:
    """For a strategy that is called outside a run: its PluginErrors do not advise to resume a run.

    Raises: PluginError, as the strategy does.
    """
    try:
        yield
    except PluginError as error:
        raise PluginError(str(error).replace(GOES_ON, "")) from error


@dataclass(frozen=True, slots=True)
class Promise:
    """How strategies of one kind are called, and what they may return."""

    parameters: tuple[str, ...]
    expected: str
    module: str  # where the built-in ones can be read
    accept: Callable[[Foreign, Arguments], Foreign]  # converts the answer for the core; raises Unusable


def held(function: Foreign, promise: Promise, *, key: str) -> Callable[..., Foreign]:
    """The function, with PluginErrors for exceptions and wrong answers.

    Raises: ConfigError if it cannot be called with such arguments.
    """
    _refuse_uncallable(function, promise, key)
    accept, place = promise.accept, where(function)

    def failure(how: str, arguments: Arguments) -> PluginError:
        given = ", ".join(map(_shape, arguments)) or "nothing"
        return PluginError(
            f"{key}: {how}. It was given {given}; expected {promise.expected} (see {promise.module}). Mend "
            f"the function{GOES_ON}."
        )

    @wraps(function)
    def decide(*arguments: Foreign) -> Foreign:
        given = tuple(map(as_given, arguments))
        try:
            answer = function(*arguments)
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            raise failure(f"{where(function, error)} raised {what(error)}", given) from error
        try:
            return accept(answer, given)
        except Unusable as why:
            raise failure(f"{place} answered {shown(answer)}{why}", given) from None
        except (Exception, SystemExit) as error:  # whatever the answer's own methods raise
            raise failure(f"{where(function, error)} raised {what(error)}", given) from error

    return decide


def as_given(argument: Foreign) -> Foreign:
    """A copy of the argument: the function may change a list, or a list in a dict."""
    if isinstance(argument, list):
        return [*cast("list[Foreign]", argument)]
    if isinstance(argument, dict):
        return {key: [*values] for key, values in cast("dict[Foreign, list[Foreign]]", argument).items()}
    return argument


def _refuse_uncallable(function: Foreign, promise: Promise, key: str) -> None:
    called = f"called with ({', '.join(promise.parameters)})"
    if inspect.isclass(function):
        name = function.__name__
        raise ConfigError(
            f"{key}: {where_class(function)} is a class; expected a function that is {called}. Make one "
            f"object in that file, `rule = {name}()`, and name `rule`."
        )
    if not callable(function):
        raise ConfigError(f"{key} is {shown(function)}; expected a function that is {called}.")
    try:
        inspect.signature(function).bind(*promise.parameters)
    except TypeError as error:
        raise ConfigError(
            f"{key}: {where(function)} takes {inspect.signature(function)}, and is {called}, by position: "
            f"TypeError: {error}. Give it these parameters (see {promise.module})."
        ) from None
    except ValueError:
        return  # compiled code: a call will show it


# -- what each kind may answer -------------------------------------------------------------------------------


def instance_id(answer: Foreign, arguments: Arguments) -> int | None:
    """The id of one of the instances in the second argument, or None."""
    if answer is None:
        return None
    number = _integer(answer)
    offered = [view.id for view in arguments[1]]
    if number not in offered:
        raise Unusable(f", which is none of the instances that it may choose from, {_listed(offered)}")
    return number


def instance_ids(answer: Foreign, arguments: Arguments) -> list[int]:
    """The ids of some of the instances in the first argument."""
    numbers = _integers(answer)
    offered = {view.id: None for view in arguments[0]}
    for number in numbers:
        if number not in offered:
            raise Unusable(
                f"; {number} is none of the instances that it may choose from, {_listed([*offered])}"
            )
    return numbers


def moved_ids(answer: Foreign, arguments: Arguments) -> list[int]:
    """The ids of some of the trajectories in the second argument, numbered from 0 as they were viewed."""
    numbers = _integers(answer)
    running = arguments[1]
    count = running.shown if hasattr(running, "shown") else sum(map(len, running.values()))
    for number in numbers:
        if not 0 <= number < count:
            raise Unusable(f"; {number} is none of the {count} trajectories that it looked at")
    return numbers


def amount(answer: Foreign, arguments: Arguments) -> int | float:
    """A number of groups, rounded up; 0 and less start none."""
    del arguments
    found = _number(answer)
    return found if math.isinf(found) else math.ceil(found)


def cap_and_mu(answer: Foreign, arguments: Arguments) -> tuple[float, float]:
    """A cap and a mu within their limits."""
    del arguments
    pair = cast("tuple[Foreign, ...]", answer) if isinstance(answer, tuple) else ()
    if len(pair) != 2:
        raise Unusable(", which is no pair of numbers")
    cap, mu = _number(pair[0]), _number(pair[1])  # a compiled core loses what `map` raises
    if not (1 <= cap < float("inf") and 0 <= mu <= 1):
        raise Unusable("; a cap is 1 or more and finite, a mu from 0 to 1")
    return float(cap), float(mu)


def verdict(answer: Foreign, arguments: Arguments) -> bool:
    """True or False."""
    del arguments
    return bool(_number(int(answer) if isinstance(answer, bool) else answer))


def weights(answer: Foreign, arguments: Arguments) -> list[float]:
    """A weight per source of the view, not all 0, whose sum is finite."""
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes | Mapping | set | frozenset):
        raise Unusable(", which is no list")
    found = [float(_number(each)) for each in cast("Iterable[Foreign]", answer)]
    if len(found) != len(arguments[0].sources):
        raise Unusable(f", which are {len(found)} weights for {len(arguments[0].sources)} sources")
    if min(found, default=0.0) < 0 or not 0 < sum(found) < math.inf:
        raise Unusable(", which are no weights: each is 0 or more, one is more, and their sum is finite")
    return found


def order_of_all(answer: Foreign, arguments: Arguments) -> list[int]:
    """A permutation of the places in the window; sets are refused, as they have no order."""
    if isinstance(answer, set | frozenset):
        raise Unusable(", which is a set and has no order")
    numbers, count = _integers(answer), len(arguments[0].prompts)
    if sorted(numbers) != list(range(count)):
        raise Unusable(f", which does not hold each of the places 0 to {count - 1} once")
    return numbers


def numbers_of_turns(answer: Foreign, arguments: Arguments) -> tuple[tuple[float, ...], ...]:
    """A finite number for each turn of each episode of the view."""
    wanted = [len(turns) for turns in arguments[0].rewards]
    found = tuple(tuple(float(_number(each)) for each in _items(turns)) for turns in _items(answer))
    if [len(turns) for turns in found] != wanted:
        raise Unusable(f", whose lengths are {[len(turns) for turns in found]}, and the turns are {wanted}")
    if not all(math.isfinite(each) for turns in found for each in turns):
        raise Unusable(", which are not all finite")
    return found


def sort_key(answer: Foreign, arguments: Arguments) -> tuple[int | float, ...]:
    """A tuple of numbers, also for a single number, so that all keys can be compared."""
    del arguments
    parts = cast("tuple[Foreign, ...]", answer) if isinstance(answer, tuple) else (answer,)
    return tuple(map(_number, parts))


def _number(answer: Foreign) -> int | float:
    found = answer.item() if hasattr(answer, "item") and getattr(answer, "ndim", 0) == 0 else answer
    if isinstance(found, bool):
        found = int(found)
    if type(found) not in (int, float):
        raise Unusable(", which is no number")
    if found != found:
        raise Unusable(", which is no number")
    return found


def _integer(answer: Foreign) -> int:
    if type(answer) is int:
        return answer
    if isinstance(answer, bool) or not hasattr(answer, "__index__"):
        raise Unusable(", which is no `id`")
    return operator.index(answer)


def _items(answer: Foreign) -> Iterable[Foreign]:
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes | Mapping | set | frozenset):
        raise Unusable(", which is no list of lists")
    return cast("Iterable[Foreign]", answer)


def _integers(answer: Foreign) -> list[int]:
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes | Mapping):
        raise Unusable(", which is no list")
    items = cast("Iterable[Foreign]", answer)
    return [_integer(each) for each in (sorted(items) if isinstance(items, set | frozenset) else items)]


# -- in words ------------------------------------------------------------------------------------------------


def _listed(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers[:8]))
    return f"{listed}, ... ({len(numbers)} of them)" if len(numbers) > 8 else listed or "(none)"


def _shape(argument: Foreign) -> str:
    """An argument in a few words, for error messages."""
    if isinstance(argument, WorkView):
        return f"a WorkView of {'fresh' if argument.is_fresh else 'begun'} work"
    if hasattr(argument, "_fields"):
        return type(argument).__name__
    if isinstance(argument, Mapping):
        return f"the trajectories of {len(cast('Mapping[Foreign, Foreign]', argument))} instances"
    if isinstance(argument, Sequence) and not isinstance(argument, str):
        items = cast("Sequence[Foreign]", argument)
        if not items:
            return "an empty list"
        names = {type(each).__name__ for each in items}
        name = names.pop() if len(names) == 1 else "value"
        return f"{len(items)} {name}{'s' * (len(items) != 1)}"
    return shown(argument)
