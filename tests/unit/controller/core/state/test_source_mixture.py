"""The core chooses among sources by weight, step and pass rate, and chooses the same when it is replayed."""

import re

import pytest

from controller.config.data import DataSettings
from controller.config.models import Config
from controller.config.rules import cross_field_problems
from controller.core.events import PromptsRead
from controller.core.state.source_mixture import Mixture
from controller.durability.image.freezer import Freezer
from controller.durability.recording import Recording
from controller.host.resumed_run import derive
from protocol.errors import PluginError
from strategies.kinds import hold
from strategies.schedules import SCHEDULES
from tests.support.answered_run import AnsweredRun

A, B = {"path": "a"}, {"path": "b"}
TWO = [{"path": "easy.jsonl", "weight": 3}, {"path": "hard.parquet"}]


def settings(*sources: dict[str, object], **data: object) -> DataSettings:
    return DataSettings.model_validate({"sources": list(sources or TWO), **data})


def drawn(mixture: Mixture, count: int, *, step: int = 0, schedule: str = "constant") -> list[int]:
    """So many prompts, 50 at a time, all of which come."""
    found: list[int] = []
    while len(found) < count:
        some = mixture.choose(min(50, count - len(found)), step, SCHEDULES[schedule])
        mixture.on_read(len(some), some)
        found += some
    return found


def test_a_mixture_keeps_to_its_weights_all_along():
    found = drawn(Mixture(settings(), 0), 4000)
    assert abs(found.count(0) - 3000) <= 2
    for begin in range(0, 4000, 40):
        assert abs(found[begin : begin + 40].count(0) - 30) <= 2


def test_the_seed_decides_where_a_mixture_begins():
    assert drawn(Mixture(settings(), 5), 99) == drawn(Mixture(settings(), 5), 99)
    assert len({tuple(drawn(Mixture(settings(), seed), 4)) for seed in range(20)}) > 1


def test_stages_and_ramps_go_by_the_train_step():
    stages = [
        {"from_step": 0, "weights": {"easy": 1}},
        {"from_step": 100, "weights": {"easy": 1, "hard": 3}},
    ]
    shares = {
        (schedule, step): drawn(
            Mixture(settings(stages=stages, schedule=schedule), 0), 400, step=step, schedule=schedule
        ).count(1) / 400
        for schedule in ("stages", "ramp")
        for step in (0, 99, 100, 500)
    }  # fmt: skip
    assert [shares["stages", step] for step in (0, 99, 100, 500)] == pytest.approx(
        [0, 0, 0.75, 0.75], abs=0.01
    )
    assert [shares["ramp", step] for step in (0, 99, 100, 500)] == pytest.approx(
        [0, 2.97 / 3.97, 0.75, 0.75], abs=0.01
    )


def test_a_source_that_is_half_solved_is_read_most():
    mixture = Mixture(settings({"path": "a"}, {"path": "b"}, {"path": "c"}, schedule="pass_rate"), 0)
    for _ in range(200):
        mixture.on_scored(0, (1.0, 1.0))
        mixture.on_scored(1, (0.0, 1.0))
        mixture.on_scored(2, (0.0, 0.0))
    assert [round(source.pass_rate, 3) for source in mixture.sources] == [1, 0.5, 0]
    counts = [drawn(mixture, 1200, schedule="pass_rate").count(n) for n in range(3)]
    assert counts == pytest.approx([100, 1000, 100], abs=3)


def test_a_source_that_has_ended_leaves_its_share_to_the_others():
    mixture = Mixture(settings(), 0)
    wanted = mixture.choose(40, 0, SCHEDULES["constant"])
    came = tuple(number for number in wanted if number == 1) + (0,) * 7
    assert [place for place in mixture.on_read(len(came), came) if place[0] == 0] == [
        (0, n) for n in range(7)
    ]
    assert set(drawn(mixture, 60)) == {1}


def test_prompts_that_did_not_come_are_asked_for_again_in_their_order(tmp_path):
    run = AnsweredRun(tmp_path / "run.db", data={"sources": TWO})
    run.core.step(0.0, run.inbox.popleft())
    asked = run.core.state.mixture.asked
    assert len(asked) == run.core.scoring.reading > 0
    run.core.step(0.0, PromptsRead(0, 5, False, asked[:5]))
    assert [group.source for group in run.core.state.groups.values()] == list(asked[:5])


@pytest.mark.parametrize("weights", [[1e308, 1e308], [0.0, 0.0], [2.0, -1.0], [float("inf"), 1.0]])
def test_weights_of_the_users_that_give_no_source_a_share_are_refused_in_a_sentence(weights):
    mixture, schedule = Mixture(settings(), 0), hold("schedule", lambda view: weights)
    with pytest.raises(PluginError, match=r"which are no weights: .* and their sum is finite\. It was given"):
        mixture.choose(4, 0, schedule)
    assert mixture.asked == ()


@pytest.mark.parametrize("events", [12, 40, 77, 200])
@pytest.mark.parametrize("schedule", ["constant", "pass_rate"])
def test_a_killed_run_has_the_same_mixture_after_its_journal_is_replayed(tmp_path, events, schedule):
    data = {"sources": TWO, "schedule": schedule, "pass_reward": 0.0}
    run = AnsweredRun(tmp_path / "run.db", steps=20, data=data)
    run.to_the_end(max_events=events, flush=False)
    with Recording(tmp_path) as recording:
        again = derive(recording).core
    assert Freezer().freeze(again) == Freezer().freeze(run.core)
    rates = [source.pass_rate for source in again.state.mixture.sources]
    assert (rates != [0.5, 0.5]) is (events >= 40)


def staged(*, from_step: int = 0, weights: dict[str, float]) -> dict[str, object]:
    stages = [{"from_step": from_step, "weights": weights}]
    return {"sources": [A, B], "schedule": "ramp", "stages": stages}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"sources": [A | {"weight": 0}, B | {"weight": 0}]}, r"weights that sum to 0 \(a 0, b 0\)"),
        (
            {"sources": [A | {"weight": 1e308}, B | {"weight": 1e308}]},
            r"weights that sum to more than a number can hold \(a 1e\+308, b 1e\+308\)",
        ),
        ({"sources": [{"path": "x/a.jsonl"}, {"path": "y/a.jsonl"}]}, "2 sources named 'a'"),
        ({"path": "c", "sources": [A]}, "keep one of the two"),
        ({"sources": [{}]}, "is empty; name a file"),
        ({"schedule": "stages", "sources": [A, B]}, "has 0 stages"),
        ({"stages": [{"from_step": 0, "weights": {"a": 1}}], "sources": [A, B]}, "schedule is constant"),
        (staged(from_step=3, weights={"a": 1}), "expected 0 first"),
        (staged(weights={"aa": 1}), "names 'aa', which is no source; data.sources has a, b"),
        (staged(weights={"a": 0}), "sum to 0"),
        (staged(weights={"a": 1e308, "b": 1e308}), r"^sum to more than a number can hold .* finite sum"),
        ({"min_chars": 9, "max_chars": 8}, "no prompt is left"),
        ({"prompt": "{q}", "columns": {"prompt": "q"}}, "keep one"),
    ],
)  # fmt: skip
def test_sources_that_cannot_be_mixed_are_refused_when_they_are_read(data, words):
    problems = cross_field_problems(Config.model_validate({"data": data}))
    assert any(re.search(words, text) for _, text in problems), problems


def test_a_source_takes_what_it_leaves_out_from_the_section():
    data = settings({"path": "a", "prompt": "{x}"}, {"path": "b"}, prompt="{q}", columns={"q": "question"})
    (_, first), (place, second) = data.each
    assert (first.prompt, first.columns) == ("{x}", {"q": "question"})
    assert (place, second.prompt, second.shuffle) == ("data.sources.1", "{q}", True)
    assert DataSettings.model_validate_json(data.model_dump_json()) == data
