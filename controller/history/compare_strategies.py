"""Compares a run's decisions with those that another strategy would have taken in the same situations.

Invariants: the run's own strategy decides, so its own history is replayed; the other strategy gets the same
arguments, with its own knobs, and its answers change nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from controller.config.load import change_config
from controller.config.models import Config
from controller.core.core import Core
from controller.core.state.run_state import knobs
from controller.durability.recording import Recording
from controller.durability.replay import shortened
from controller.history.reasons_of_data import order_in_words, shares_in_words
from protocol.errors import ConfigError, PluginError, RunError
from strategies.batches.samplers import SamplingView
from strategies.kinds import Strategies
from strategies.outcomes import TurnsView
from strategies.own import as_given, outside_a_run
from strategies.pacing import StepView
from strategies.presets import FIXED_BOUND
from strategies.routing import Routing
from strategies.schedules import MixtureView
from strategies.views import AdmissionView, Settings

MOST_EPISODES = 8  # of a group whose turns are shown
KEPT = 5  # differences of each kind that are shown one by one
LABELS = {
    "route": "routing", "admit": "admission", "migrate": "migration", "synchronize": "pulls",
    "keep": "filter", "adapt": "pacing",
}  # fmt: skip
"""Names of the decisions for people, by the field of `Strategies` that takes them."""


class Difference(NamedTuple):
    """One decision in which the other strategy differs."""

    now: float  # seconds since the run began
    about: str
    chosen: object
    other: object
    in_words: tuple[str, str]  # both answers, for a person


@dataclass(slots=True)
class Agreement:
    """How often two strategies decide the same, for one kind of decision."""

    decisions: int = 0
    different: int = 0
    first: list[Difference] = field(default_factory=list)  # at most KEPT


class Shadow:
    """Calls another strategy with the arguments of each call of a core's own strategy."""

    def __init__(self, recording: Recording, core: Core, other: Config) -> None:
        """Wrap the core's strategies. `core`: the recording's own, not yet stepped.

        Raises: ConfigError if a strategy of `other` cannot be loaded.
        """
        self.agreements = {name: Agreement() for name in LABELS}
        """By the field of `Strategies` that decides."""
        self._core, self._other = core, other
        self._leaves_filter_out = recording.config().filters_by_turn != other.filters_by_turn
        if self._leaves_filter_out:
            del self.agreements["keep"]
        core.state.strategies = self._watch(core.state.strategies, recording.strategies(other))

    def _watch(self, own: Strategies, other: Strategies) -> Strategies:
        """The run's own strategies with the other ones beside them; routing keeps its own order."""
        return Strategies(
            route=Routing(self._watched("route", own.route.choose, other.route.choose), own.route.order),
            admit=self._watched("admit", own.admit, other.admit),
            migrate=self._watched("migrate", own.migrate, other.migrate),
            synchronize=self._watched("synchronize", own.synchronize, other.synchronize),
            keep=own.keep if self._leaves_filter_out else self._watched("keep", own.keep, other.keep),
            schedule=own.schedule,  # the mixture of the data is not compared
            adapt=self._watched("adapt", own.adapt, other.adapt),
            sample=own.sample,
            credit=own.credit,
        )

    def _watched(self, name: str, own: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
        core = self._core

        def decide(*arguments: Any) -> Any:
            asked = [self._with_knobs(as_given(argument)) for argument in arguments]
            chosen = own(*arguments)
            try:
                with outside_a_run():
                    otherwise = other(*asked)
            except PluginError as error:
                raise RunError(f"The other strategy failed at {core.state.now:.3f} s. {error}") from error
            except Exception as error:  # a built-in strategy fails on a knob that it cannot use
                raise RunError(
                    f"The other strategy failed as {LABELS[name]} at {core.state.now:.3f} s with "
                    f"{type(error).__name__}: {str(error).rstrip('.')}. Mend it, or choose one that fits "
                    "the run."
                ) from error
            agreement = self.agreements[name]
            agreement.decisions += 1
            if _effect(name, otherwise) != _effect(name, chosen):
                agreement.different += 1
                if len(agreement.first) < KEPT:
                    words = [answer_in_words(name, answer, arguments, core) for answer in (chosen, otherwise)]
                    found = Difference(
                        core.state.now, subject(name, arguments[0]), chosen, otherwise, (words[0], words[1])
                    )
                    # the core may ask the same many times in one step
                    if all(kept.in_words != found.in_words or kept.about != found.about
                           for kept in agreement.first):  # fmt: skip
                        agreement.first.append(found)
            return chosen

        return decide

    def _with_knobs(self, argument: Any) -> Any:
        """The argument with the knobs of the other configuration."""
        staleness = self._other.staleness
        if argument is self._core.state.config.staleness.in_flight_batches:  # admission gets this knob alone
            return staleness.in_flight_batches
        if isinstance(argument, Settings):
            return argument._replace(**knobs(self._other))
        if isinstance(argument, StepView):
            return argument._replace(most_mu=staleness.mu, adapts_mu=staleness.adaptive_mu)
        if isinstance(argument, AdmissionView):
            return argument._replace(
                max_staleness=staleness.max_staleness, spare_groups=staleness.spare_groups
            )
        return argument


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
    """The comparison as text, several lines."""
    lines = []
    for name, agreement in agreements.items():
        equal = agreement.decisions - agreement.different
        lines.append(
            f"{LABELS[name]}: {agreement.decisions:,} decisions, {equal:,} equal, "
            f"{agreement.different:,} different"
        )
        lines += [
            f"  {now:.3f} s, {about}: {chosen}; the other: {other}"
            for now, about, _, _, (chosen, other) in agreement.first
        ]
    return "\n".join(lines)


def _effect(what: str, answer: Any) -> Any:
    """The effect of an answer on the core, for comparison.

    Instances that pull, and trajectories that move, are a set; admission is called again after each group, so
    only the sign of its answer counts.
    """
    if what == "admit" and isinstance(answer, int | float):
        return answer > 0
    is_numbers = isinstance(answer, list) and all(isinstance(number, int) for number in answer)
    return set(answer) if is_numbers else answer


def answer_in_words(what: str, answer: Any, arguments: tuple[Any, ...], core: Core) -> str:
    """An answer as text; one that the core could not use is shown as it is."""

    def instance(number: int) -> str:
        return core.state.registry.instance(number).name

    try:
        match what:
            case "route":
                return "it waits" if answer is None else f"to {instance(answer)}"
            case "admit":
                return f"{answer} more may start" if answer > 0 else "none may start"
            case "synchronize":
                return ", ".join(map(instance, sorted(answer))) or "nobody"
            case "migrate":
                moved = (arguments[1].trajectory(index).id for index in answer)
                moves = ", ".join(f"{group}.{member}" for group, member in moved)
                return f"{moves} move" if moves else "nothing moves"
            case "keep":
                return "kept" if answer else "dropped"
            case "adapt":
                cap, mu = answer
                return f"{cap:.1f} groups in the system, mu {mu:g}"
            case "sample":
                return order_in_words(answer, arguments[0])
            case "schedule":
                return shares_in_words(answer, arguments[0])
            case "credit":
                return by_episode(answer)
    except (KeyError, IndexError, TypeError, ValueError):  # the user's own strategy may answer anything
        pass
    return shortened(repr(answer))


def subject(what: str, argument: Any) -> str:
    """The subject of a decision, as text."""
    if isinstance(argument, AdmissionView):
        in_system = argument.generating + argument.occupied
        return f"{in_system} groups in the system at version {argument.train_version}"
    if isinstance(argument, StepView):
        return f"a step of {argument.pace.periods[-1]:.3f} s"
    if isinstance(argument, SamplingView):
        return f"window {argument.number}: {len(argument.prompts)} prompts"
    if isinstance(argument, MixtureView):
        return f"{len(argument.sources)} sources of prompts"
    if isinstance(argument, TurnsView):
        return f"rewards of turns {by_episode(argument.rewards)}"
    if hasattr(argument, "group"):
        return f"group {argument.group}"
    if what == "keep":
        return f"rewards {', '.join(f'{reward:g}' for reward in argument)}"
    if isinstance(argument, Sequence) and not hasattr(argument, "_fields"):
        return f"{len(argument)} instances{' behind' if what == 'synchronize' else ''}"
    return shortened(repr(argument))


def by_episode(values: Sequence[Sequence[float]]) -> str:
    """A number for each turn, of the first MOST_EPISODES episodes, as text."""
    told = [", ".join(f"{value:g}" for value in turns) for turns in values[:MOST_EPISODES]]
    return "; ".join(told) + ("; ..." if len(values) > MOST_EPISODES else "")
