"""Calls a strategy on made-up situations of a run.

Invariants: every situation can occur in a run; each is given ASKED times, so that a strategy whose answers
differ, or that changes its arguments, is reported.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy

from protocol.blame import shown
from strategies.batches.samplers import PromptView, SamplingView
from strategies.outcomes import TurnsView
from strategies.own import Arguments, Foreign
from strategies.pacing import Pace, StepView
from strategies.routing import Routing, has_room
from strategies.schedules import MixtureView, SourceView
from strategies.views import AdmissionView, InstanceView, RunningView, Settings, SyncView, WorkView

ASKED = 4  # a random choice between two answers shows in 7 of 8 situations

SETTINGS = Settings(newest_version=3, fresh=4, typical_tokens=64, horizon_s=10.0, is_batch_ready=True)
FULL = InstanceView(0, 3, 8, 4000, 8, 4096, expected_tokens=4090)
IDLE = InstanceView(1, 3, 0, 0, 8, 4096)
BUSY = InstanceView(5, 2, 6, 900, 8, 4096, expected_tokens=1500, has_sibling=True, urgent=1, waiting=2)
FRESH = WorkView(7, 20, 0, True, 84, 2)
BEGUN = WorkView(6, 60, 2, False, 120, 1)


def _running(index: int, tokens: int, left: int) -> RunningView:
    return RunningView(index, tokens, left, 2, index % 2, tokens // 2)


def _routing() -> list[Arguments]:
    shown = ([IDLE], [BUSY], [IDLE, BUSY], [FULL], [FULL, IDLE, BUSY])
    return [(work, instances, SETTINGS) for work in (FRESH, BEGUN) for instances in shown]


def _synchronization() -> list[Arguments]:
    idle = SyncView(0, 2, 0, 0, 8, pull_s=0.5, kv_tokens=4096)
    busy = SyncView(1, 1, 6, 900, 8, pull_s=0.5, restart_s=2.0, waiting=2, kv_tokens=4096, useful=3)
    new = SyncView(5, -1, 0, 0, 8, kv_tokens=4096)
    return [
        (instances, settings)
        for instances in ([idle], [busy], [idle, busy, new])
        for settings in (SETTINGS, SETTINGS._replace(is_batch_ready=False, fresh=0, guard=True))
    ]


def _migration() -> list[Arguments]:
    some = {0: [_running(2, 500, 9)], 1: [], 5: [_running(0, 150, 40), _running(1, 90, 400)]}
    return [
        ([], {}, SETTINGS),
        ([IDLE], {1: []}, SETTINGS),
        ([IDLE, BUSY], {1: [], 5: some[5]}, SETTINGS),
        ([FULL, IDLE, BUSY], some, SETTINGS._replace(is_tail_bound=True)),
    ]


def _admission() -> list[Arguments]:
    first = AdmissionView(2, 8, 0, 0, 0, 0, 0, cap=16.0)
    later = AdmissionView(2, 8, 5, 4, 10, 6, 56, 4, 12, 9, cap=16.0)
    return [(view, batches) for view in (first, later) for batches in ("auto", "all", 2.0)]


def _filter() -> list[Arguments]:
    return [((0.0, 0.0, 0.0, 0.0),), ((1.0, 1.0),), ((0.0, 1.0, 0.5, -2.0),)]


def _turn_advantages() -> list[Arguments]:
    groups = (((1.0,), (0.0, 0.5)), ((0.0,), (0.0,)), ((1.0, -1.0, 2.0), (0.0,), (0.5, 0.5)))
    return [(TurnsView(rewards, 0.9, "group_mean", "group_std"),) for rewards in groups]


def _schedule() -> list[Arguments]:
    easy, hard = SourceView("easy", 1.0, 10, 8, 0.9), SourceView("hard", 2.0, 20, 16, 0.1)
    new = SourceView("new", 0.0, 0, 0, 0.5)
    staged = ((0, (1.0, 0.0, 0.0)), (10, (0.2, 0.8, 0.0)))
    alone = MixtureView(0, (easy,))
    return [
        (alone,),
        (MixtureView(3, (easy, hard, new), staged),),
        (MixtureView(30, (easy, hard, new), staged),),
    ]


def _schedule_of(sources: Sequence[tuple[str, float]]) -> list[Arguments]:
    """A run's own sources, by name and weight, since a schedule may know them by their names."""
    fresh = tuple(SourceView(name, weight, 0, 0, 0.5) for name, weight in sources)
    met = tuple(one._replace(read=10 + n, scored=8, pass_rate=1 / (1 + n)) for n, one in enumerate(fresh))
    return [(MixtureView(0, fresh),), (MixtureView(3, met),), (MixtureView(30, met),)]


def _pacing() -> list[Arguments]:
    view = AdmissionView(2, 8, 5, 4, 10, 6, 56, 4, 12, 9, cap=16.0)
    calm = Pace(16.0, period_s=10.0, periods=(9.0, 11.0))
    paces = (calm, calm._replace(starved=0.4), calm._replace(late=0.4))
    return [(StepView(pace, view, 0.2, 0.3, adapts),) for pace in paces for adapts in (True, False)]


def _sampler() -> list[Arguments]:
    new = tuple(PromptView(group, 0, 20, 0.0, 0.0) for group in range(8))
    known = tuple(PromptView(40 + i, i % 2, 20 + i, (i * 7 % 10) / 3, float(i % 3)) for i in range(10))
    return [(SamplingView(prompts, 4, seed),) for prompts in (new, known, known[:1]) for seed in (3, 4)]


SITUATIONS: dict[str, Callable[[], list[Arguments]]] = {
    "routing": _routing,
    "synchronization": _synchronization,
    "migration": _migration,
    "admission": _admission,
    "filter": _filter,
    "schedule": _schedule,
    "pacing": _pacing,
    "sampler": _sampler,
    "turn_advantages": _turn_advantages,
}


SEEDS = {
    "routing": "work.group",
    "synchronization": "settings.newest_version",
    "migration": "settings.newest_version",
    "admission": "view.started",
    "filter": "str(rewards)",
    "schedule": "view.step",
    "pacing": "step.admission.train_version",
    "sampler": "view.seed",
    "turn_advantages": "str(view.rewards)",
}
"""Arguments from which a strategy may seed randomness, as `strategies.kinds.PROMISES` names them."""


def try_out(field: str, strategy: Foreign, sources: Sequence[tuple[str, float]] = ()) -> Iterator[str]:
    """Remarks on this strategy for the key `kinds.key_of(field)`, at most one of each kind.

    `sources`: name and weight of each source of prompts; () makes some up.
    Raises: PluginError if it fails, or gives an answer that is not allowed.
    """
    notes: dict[str, str] = {}
    is_routing = isinstance(strategy, Routing)
    decide = strategy.choose if is_routing else strategy
    own = field == "schedule" and sources
    for arguments in _schedule_of(sources) if own else SITUATIONS[field]():
        for kind, text in _try_one(field, decide, arguments):
            notes.setdefault(kind, text)
        if is_routing and strategy.order is not None:
            _, instances, settings = arguments
            for instance in instances:
                strategy.order(instance, settings)
    yield from notes.values()


def _try_one(field: str, strategy: Callable[..., Foreign], arguments: Arguments) -> Iterator[tuple[str, str]]:
    answers: list[Foreign] = []
    for _ in range(ASKED):
        given = deepcopy(arguments)
        answers.append(strategy(*given))
        if given != arguments:
            yield (
                "changes",
                "changed a list that it was given. Expected that a strategy changes nothing: copy it first, "
                "`sorted(...)` in place of `.sort()`.",
            )
    if other := [answer for answer in answers if answer != answers[0]]:
        one, another = shown(answers[0]), shown(other[0])
        yield (
            "differs",
            f"answered {one} and then {another} to the very same. Expected that it depends on its arguments "
            "alone: a run is taken up and replayed by asking again. Derive chance from them, for example by "
            f"`random.Random({SEEDS[field]})`.",
        )
    if isinstance(arguments[0], WorkView) and answers[0] is not None:
        chosen = next(view for view in arguments[1] if view.id == answers[0])
        if not has_room(arguments[0], chosen):
            yield (
                "crowds",
                "chose an instance without room, inside which the work waits while others become free. Leave "
                "out those for which strategies.routing.has_room(work, instance) is False.",
            )
