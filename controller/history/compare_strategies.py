"""What another strategy would have decided at each point of a run, where the run stood then.

Invariants: the run's own strategy decides, so its history is the one that is replayed; the other one is
asked the same questions, with its own knobs, and its answers change nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import ismethod
from typing import Any, NamedTuple

from controller.config.load import change_config
from controller.config.models import Config
from controller.core.core import Core
from controller.durability.recording import Recording
from controller.durability.replay import shortened
from protocol.errors import ConfigError, RunError
from strategies.presets import FIXED_BOUND
from strategies.views import AdmissionView

KEPT = 5  # differences of each kind that are told one by one
LABELS = {
    "admit": "admission", "choose": "pulls", "keep": "filter", "migrate": "migration", "route": "routing",
}  # fmt: skip
"""What people call the decisions, by the name of the function that takes them."""


class Difference(NamedTuple):
    """One decision that the other strategy would have taken otherwise."""

    now: float  # seconds since the run began
    about: str
    chosen: object
    other: object
    in_words: tuple[str, str]  # both, for a person


@dataclass(slots=True)
class Agreement:
    """How often two strategies decide the same, for one kind of decision."""

    decisions: int = 0
    different: int = 0
    first: list[Difference] = field(default_factory=list)  # at most KEPT


class Shadow:
    """Watches a core, and asks another strategy whatever the core's own is asked."""

    def __init__(self, recording: Recording, core: Core, other: Config) -> None:
        """Put the watch in place of the core's strategies. `core`: the recording's own, not yet stepped.

        Raises: ConfigError if a strategy of `other` cannot be found.
        """
        self.agreements: dict[str, Agreement] = {}
        """By the part of the core that decides, and its name for the strategy: coordination.route, ..."""
        self._core, self._other = core, other
        others = _strategies(recording.make_core(other))
        for name, (holder, attribute) in _strategies(core).items():
            if name in others:
                self.agreements[name] = Agreement()
                own, other_own = getattr(holder, attribute), getattr(*others[name])
                setattr(holder, attribute, self._watched(name, own, other_own))

    def _watched(self, name: str, own: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
        core = self._core

        @wraps(own)  # with its attributes: the core goes by them
        def decide(*arguments: Any) -> Any:
            chosen = own(*arguments)
            try:
                otherwise = other(*map(self._with_knobs, arguments))
            except Exception as error:  # it may be the user's
                raise RunError(
                    f"The other strategy failed as {name} at {core.state.now:.3f} s with "
                    f"{type(error).__name__}: {str(error).rstrip('.')}. Mend it, or choose one that fits "
                    "the run."
                ) from error
            agreement = self.agreements[name]
            agreement.decisions += 1
            what = name.rpartition(".")[2]
            if _effect(what, otherwise) != _effect(what, chosen):
                agreement.different += 1
                if len(agreement.first) < KEPT:
                    words = [_in_words(what, answer, arguments, core) for answer in (chosen, otherwise)]
                    found = Difference(
                        core.state.now, _subject(what, arguments[0]), chosen, otherwise, (words[0], words[1])
                    )
                    # the core may ask the same many times in one step
                    if all(kept.in_words != found.in_words or kept.about != found.about
                           for kept in agreement.first):  # fmt: skip
                        agreement.first.append(found)
            return chosen

        return decide

    def _with_knobs(self, argument: Any) -> Any:
        """The argument with the other configuration's value for each field that is a key of `staleness`."""
        staleness = self._other.staleness
        if argument is self._core.state.config.staleness.in_flight_batches:  # admission gets this knob alone
            return staleness.in_flight_batches
        names = getattr(argument, "_fields", ())
        return (
            argument._replace(**{n: getattr(staleness, n) for n in names if hasattr(staleness, n)})
            if names
            else argument
        )


def other_config(config: Config, strategy: str | None, changes: Sequence[str]) -> Config:
    """The run's configuration under another strategy: its preset, then the changes.

    A preset without a bound of its own gets the run's. Without `strategy` the run's own keys stay. `changes`:
    `staleness.key=value`. Raises: ConfigError.
    """
    foreign = [change for change in changes if not change.startswith("staleness.")]
    if foreign:
        raise ConfigError(
            f"{foreign[0]!r} changes more than the strategy, so the run's events would not fit it. Expected "
            "`staleness.key=value`; use `launch.py simulate` for anything else."
        )
    if strategy is None:
        return change_config(config, changes)
    keys = set(type(config.staleness).model_fields)
    if strategy not in FIXED_BOUND:
        keys.remove("max_staleness")
    preset = f"staleness.strategy={strategy}"
    return change_config(config, [preset, *changes], without=[f"staleness.{key}" for key in sorted(keys)])


def agreement_in_words(agreements: dict[str, Agreement]) -> str:
    """The comparison for a person, several lines."""
    lines = []
    for name, agreement in agreements.items():
        equal = agreement.decisions - agreement.different
        label = LABELS.get(name.rpartition(".")[2], name)
        lines.append(
            f"{label}: {agreement.decisions:,} decisions, {equal:,} equal, {agreement.different:,} different"
        )
        lines += [
            f"  {now:.3f} s, {about}: {chosen}; the other: {other}"
            for now, about, _, _, (chosen, other) in agreement.first
        ]
    return "\n".join(lines)


def parts(core: Core) -> dict[str, Any]:
    """The parts of the core that decide, by the name of their class; not the state that they share."""
    found: dict[str, Any] = {}
    waiting = [part for part in vars(core).values() if part is not core.state]
    while waiting:
        part = waiting.pop()
        name = type(part).__name__.lower()
        if (
            not type(part).__module__.startswith("controller.")
            or not hasattr(part, "__dict__")
            or name in found
        ):
            continue
        found[name] = part
        waiting += [value for value in vars(part).values() if value is not core.state and value is not core]
    return dict(sorted(found.items()))


def _strategies(core: Core) -> dict[str, tuple[object, str]]:
    """Where the parts of the core keep the functions that they were given to choose by.

    A private one is no decision: the key by which routing sorts instances compares with its like alone.
    """
    return {
        f"{name}.{attribute}": (part, attribute)
        for name, part in parts(core).items()
        for attribute, value in vars(part).items()
        if callable(value) and not ismethod(value) and not attribute.startswith("_")
    }


def _effect(what: str, answer: Any) -> Any:
    """An answer as the core takes it: which instances pull, and which trajectories move, is a set; admission
    is asked again after each group, so it says yes or no."""
    if what == "admit" and isinstance(answer, int | float):
        return answer > 0
    is_numbers = isinstance(answer, list) and all(isinstance(number, int) for number in answer)
    return sorted(answer) if is_numbers else answer


def _in_words(what: str, answer: Any, arguments: tuple[Any, ...], core: Core) -> str:
    """An answer for a person; one that the core could not take is shown as it is."""

    def instance(number: int) -> str:
        return core.state.registry.instance(number).name

    try:
        match what:
            case "route":
                return "it waits" if answer is None else f"to {instance(answer)}"
            case "admit":
                return f"{answer} more may start" if answer > 0 else "none may start"
            case "choose":
                return ", ".join(map(instance, sorted(answer))) or "nobody"
            case "migrate":
                moved = (arguments[1].trajectory(index).id for index in answer)
                moves = ", ".join(f"{group}.{member}" for group, member in moved)
                return f"{moves} move" if moves else "nothing moves"
            case "keep":
                return "kept" if answer else "dropped"
    except (KeyError, IndexError, TypeError, ValueError):  # the user's own strategy may answer anything
        pass
    return shortened(repr(answer))


def _subject(what: str, argument: Any) -> str:
    if isinstance(argument, AdmissionView):
        in_system = argument.generating + argument.occupied
        return f"{in_system} groups in the system at version {argument.train_version}"
    if hasattr(argument, "group"):
        return f"group {argument.group}"
    if what == "keep":
        return f"rewards {', '.join(f'{reward:g}' for reward in argument)}"
    if isinstance(argument, Sequence) and not hasattr(argument, "_fields"):
        return f"{len(argument)} instances{' behind' if what == 'choose' else ''}"
    return shortened(repr(argument))
