"""A strategy of the user's that is slow is named, with what it took."""

import pytest

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core.core import Core
from controller.host.health import own_health
from controller.host.health.slow_strategies import KINDS, SlowStrategies
from strategies.kinds import STRATEGIES, Strategies

OWN = """
def route(work, instances, settings):
    return instances[0].id if instances else None


route.order = lambda instance, settings: 0


def keep(rewards):
    if not rewards:
        raise ValueError("no rewards")
    return True
"""


class Clock:
    """Moves by `step_s` whenever it is looked at."""

    now = step_s = 0.0

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


@pytest.fixture
def core(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    own = {"routing": f"{file}:route", "filter": f"{file}:keep"}
    config = Config.model_validate({"staleness": own})
    return Core(config, load_strategies(config))


def spend(core, clock, seconds: float) -> None:
    clock.step_s = seconds
    core.state.strategies.keep((1.0,))
    clock.step_s = 0.0


def test_every_kind_of_strategy_can_be_measured():
    assert [*KINDS] == [*Strategies.__dataclass_fields__]
    assert {*KINDS.values()} == {*STRATEGIES}


def test_own_strategies_are_measured_and_answer_as_before(core):
    before, slow = core.state.strategies, SlowStrategies()
    slow.follow(core)
    timed = core.state.strategies
    assert timed.route.choose(None, [], None) is None
    assert timed.route.order(None, None) == before.route.order(None, None)
    assert timed.keep((1.0,)) is True
    assert timed.admit is before.admit
    slow.follow(core)
    assert core.state.strategies is timed


def test_one_that_takes_more_than_a_tenth_of_a_minute_is_named_until_it_takes_a_twentieth(core):
    clock = Clock()
    slow = SlowStrategies(clock)
    slow.follow(core)
    spend(core, clock, 100.0)
    assert slow.look() == []  # before the first look
    clock.now += 30.0
    spend(core, clock, 6.0)
    assert slow.look() == []
    clock.now += 10.0
    spend(core, clock, 0.5)
    [alarm] = slow.look()
    assert (alarm.name, alarm.owner) == ("slow strategy", "staleness.filter")
    assert "keep (" in alarm.evidence
    assert alarm.evidence.endswith("mine.py, line 9) took 6.5 s of the last 53 s, in 2 calls")
    assert "Expected less than 10% of the time" in alarm.remedy
    clock.now += 55.0
    spend(core, clock, 4.0)
    assert [alarm.owner for alarm in slow.look()] == ["staleness.filter"]
    clock.now += 60.0
    assert slow.look() == []


def test_what_it_raises_is_raised_and_its_time_counts(core):
    clock = Clock()
    slow = SlowStrategies(clock)
    slow.follow(core)
    slow.look()
    clock.step_s = 7.0
    with pytest.raises(Exception, match="no rewards"):
        core.state.strategies.keep(())
    clock.step_s = 0.0
    assert len(slow.look()) == 1


def test_a_core_that_was_derived_again_is_measured_too(core):
    slow = SlowStrategies()
    slow.follow(core)
    other = Core(core.state.config, load_strategies(core.state.config))
    before = other.state.strategies
    slow.follow(other)
    assert other.state.strategies.keep is not before.keep


async def test_a_run_s_own_health_tells_of_it(core, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(own_health, "SlowStrategies", lambda: SlowStrategies(clock))
    with own_health.OwnHealth(tmp_path, lambda: core) as health:
        health.look()
        spend(core, clock, 7.0)
        assert "slow strategy" in [alarm.name for alarm in health.look()[1]]
