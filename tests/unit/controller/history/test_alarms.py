"""When a run's learning goes wrong, and that a healthy one is left alone."""

import json
from pathlib import Path

import pytest

from controller.history.alarms import ENGINE, KEYS, RULES, alarms, watched
from controller.history.metric_lines import LineColumns

PAGE = Path(__file__).resolve().parents[4] / "docs" / "view.md"
QUICKSTART = json.loads((Path(__file__).parents[3] / "support" / "quickstart_metrics.json").read_text())
"""By seed, what the rules look at in metrics.jsonl of the 140 steps of examples/quickstart.yaml."""


def lines(count=60, **columns):
    """A healthy run, but for what is given: a value for each step, or a function of it."""
    usual = {
        "reward/mean": lambda n: 0.3 + 0.005 * n, "reward/std": 0.4, "entropy": 0.5, "grad_norm": 0.2,
        "mismatch_kl": 0.002, "response_length/mean": 100.0, "response_length/cut": 0.05, "staleness/max": 1,
        "phase/scoring": 0.05,
        "skipped_steps": 0.0, "tokens/generated": lambda n: 1000 * n, "tokens/aborted": 0, "tokens/lost": 0,
    }  # fmt: skip
    all_columns = usual | {key.replace("__", "/"): value for key, value in columns.items()}
    return [
        {key: value(n) if callable(value) else value for key, value in all_columns.items()}
        for n in range(1, count + 1)
    ]


def columns_of(kept):
    """The lines as a view holds them."""
    found = LineColumns(len(kept))
    found.add(kept)
    return found.lines


def names(*args, **more):
    return [alarm.name for alarm in alarms(*args, **more)]


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_the_healthy_quickstart_raises_none_at_any_step(seed):
    columns = QUICKSTART[seed]
    steps = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert len(steps) == 140
    for count in range(len(steps) + 1):
        assert not alarms(steps[:count], bound=2), f"after step {count}"


def late(value, usual, *, since=55):
    return lambda n: value if n > since else usual


FAILING = [
    ("skipped steps", {"skipped_steps": late(1.0, 0.0)}),
    ("mismatch", {"mismatch_kl": late(0.2, 0.002)}),
    ("gradient", {"grad_norm": late(9.0, 0.2)}),
    ("entropy collapse", {"entropy": late(0.01, 0.5, since=40), "reward__mean": late(0.2, 0.6, since=40)}),
    ("no signal", {"reward__std": late(0.0, 0.4), "reward__mean": 0.5}),
    ("masked", {"tokens__masked_share": late(1.0, 0.05)}),
    ("cut responses", {"response_length__cut": late(0.6, 0.05)}),
    ("length", {"response_length__mean": late(900.0, 100.0, since=40), "reward__mean": 0.5}),
    ("slow rewards", {"phase__scoring": late(0.4, 0.05)}),
    ("wasted tokens", {"tokens__lost": lambda n: 700 * max(0, n - 50)}),
]


@pytest.mark.parametrize(("name", "columns"), FAILING)
def test_what_goes_wrong_is_named_alone_with_owner_evidence_and_remedy(name, columns):
    (found,) = alarms(lines(**columns))
    assert found.name == name
    assert any(character.isdigit() for character in found.evidence)
    assert found.owner
    assert found.remedy.endswith((".", "?"))
    assert not alarms(lines()), "the same run without it"


def test_every_rule_has_a_run_that_fails_by_it():
    named, rules = {name for name, _ in FAILING}, {name for name, *_ in RULES}
    assert named == rules, f"{named ^ rules}: give each rule columns in FAILING here that raise it alone"


def test_the_page_says_when_each_alarm_is_raised():
    table = PAGE.read_text().partition("| alarm | raised when |")[2].partition("\n\n")[0]
    said = {name for row in table.splitlines() for name in row.split(" | ")[0].strip("| ").split(", ")}
    missing = {name for name, *_ in RULES} - said
    assert not missing, f"{missing}: say in the table of alarms of docs/view.md when they are raised"


def test_steps_without_a_gradient_do_not_make_the_next_one_large():
    """A run that has solved most of its prompts: mostly all rewards of a step are equal."""

    def norms(newest):
        return lines(grad_norm=lambda n: newest if n > 55 else 0.2 if n % 5 < 2 else 0.0)

    assert names(norms(0.3)) == []
    (found,) = alarms(norms(3.0))
    assert found.evidence == "grad_norm is 3 in the last 5 steps, before it was 0.2"
    assert names(lines(grad_norm=late(0.1, 0.0))) == [], "it never had a gradient to compare with"


def test_answers_of_one_token_by_the_configuration_are_not_cut():
    assert names(lines(response_length__cut=0.9, response_length__mean=1.0)) == []


def test_turns_of_one_token_by_the_configuration_are_not_cut():
    """As in examples/guess.yaml: each episode ends with a turn of `agent.max_turn_tokens: 1`."""
    assert names(lines(response_length__cut=1.0, response_length__mean=4.3, turns__mean=4.3)) == []
    (found,) = alarms(lines(response_length__cut=1.0, response_length__mean=9.2, turns__mean=4.6))
    assert "agent.max_turn_tokens" in found.remedy


@pytest.mark.parametrize("key", ["tokens__masked_share", "response_length__cut"])
def test_the_remedy_names_every_limit_that_may_have_ended_an_episode(key):
    """An episode that came to `agent.max_turns` counts as cut, and is masked, whatever its turns."""
    (found,) = alarms(lines(**{key: 1.0}))
    for limit in ("agent.max_turns", "agent.max_tokens", "agent.max_turn_tokens", "ending/turns"):
        assert limit in found.remedy


def test_slow_rewards_are_named_until_they_are_clearly_faster():
    def shares(*values):
        return lines(len(values), phase__scoring=lambda n: values[n - 1])

    slow, less, fast = [0.3] * 5, [0.2] * 5, [0.1] * 5
    assert names(shares(*slow[:4])) == [], "four steps are too few"
    assert names(shares(*less)) == []
    assert names(shares(*slow, *less, *less)) == ["slow rewards"]
    (found,) = alarms(shares(*slow, *less, *less))
    assert found.evidence == "for 20% of the last 5 steps' time only rewards were missing"
    assert names(shares(*slow, *less, *fast)) == []
    assert names(shares(*slow, *fast, *less)) == [], "that was long ago"


@pytest.mark.parametrize(("step_s", "found"), [(1.3, []), (3.2, []), (3.4, ["slow rewards"])])
def test_the_way_to_a_reward_worker_and_back_is_no_slow_reward(step_s, found):
    assert names(lines(30, phase__scoring=0.3, time_s=lambda n: step_s * n)) == found


@pytest.mark.parametrize("long", [{"phase__scoring": 0.0}, {"phase__scoring": 0.001, "phase__paused": 0.999}])
def test_a_long_step_in_which_nothing_is_scored_makes_rewards_no_slower(long):
    """A run is taken up again, or somebody pauses it."""
    run = lines(30, phase__scoring=0.35, time_s=lambda n: n)
    for step in run[27:]:
        step["time_s"] += 600.0
    run[27] |= {key.replace("__", "/"): value for key, value in long.items()}
    assert names(run) == []


def test_steps_that_are_not_held_any_more_do_not_make_the_next_one_long():
    run = lines(1100, step=lambda n: n, phase__scoring=0.3, time_s=lambda n: n)
    assert names(watched(run[:1035])) == names(run) == []
    assert names(watched(lines(1100, step=lambda n: n, phase__scoring=0.3, time_s=lambda n: 4 * n))) == [
        "slow rewards"
    ]


def test_a_run_that_never_waited_for_rewards_says_nothing_of_them():
    assert (
        names([{key: value for key, value in line.items() if "phase" not in key} for line in lines()]) == []
    )


def test_a_broken_bound_is_named():
    assert names(lines(staleness__max=late(3, 1)), bound=2) == ["bound broken"]
    assert names(lines(staleness__max=2), bound=2) == []


@pytest.mark.parametrize("value", [1e308, -1e308, 10**400], ids=["most", "least", "whole"])
@pytest.mark.parametrize("kept", [list, columns_of], ids=["live", "looked at"])
def test_numbers_whose_sum_is_none_end_nobody(value, kept):
    reported = lines(**dict.fromkeys([*KEYS, *ENGINE], value))
    alarms(kept(reported), reported, bound=2)
    assert "skipped steps" in names(kept(lines(skipped_steps=late(1e308, 0.0))))


def test_one_bad_step_is_no_alarm():
    assert names(lines(mismatch_kl=lambda n: 0.5 if n == 60 else 0.002)) == []


def test_a_mismatch_that_was_there_from_the_start_needs_no_steps_before():
    assert names(lines(4, mismatch_kl=2.0)) == []
    assert names(lines(5, mismatch_kl=2.0)) == ["mismatch"]
    assert names(lines(60, mismatch_kl=2.0)) == ["mismatch"], "nor is it right because it is usual"


def test_every_column_that_a_rule_looks_at_is_in_the_recorded_quickstarts():
    healthy = lines()[0] | engine() | {"groups/equal_rewards": 0.0}
    assert healthy.keys() <= QUICKSTART["0"].keys()


def engine(temperature=1.0, kl=0.001, tokens=8000):
    return {
        "engine/temperature": temperature, "engine/temperature_error": 0.005,
        "engine/fresh_kl": kl, "engine/fresh_tokens": tokens,
    }  # fmt: skip


def test_the_first_batch_tells_an_engine_with_another_temperature_or_other_weights():
    healthy = lines()
    assert names([healthy[0] | engine(), *healthy[1:]]) == []
    assert names([healthy[0] | engine(temperature=1.08, kl=1e-11)]) == [], "rounding, as all is certain"
    for broken in (engine(temperature=0.9), engine(temperature=1.2), engine(kl=0.05)):
        assert names([healthy[0] | broken]) == ["mismatch"]
        assert names([healthy[0] | broken, *healthy[1:]]) == ["mismatch"], "later batches have no such tokens"
        assert names([healthy[0] | broken, healthy[1] | engine()]) == [], "it was mended"
    assert names([healthy[0] | engine(temperature=0.9, kl=0.05, tokens=99)]) == [], "too few tokens"
    assert names([healthy[0] | engine(temperature=1.04)]) == [], "3 % and four standard errors"


def test_a_collapse_within_the_first_steps_does_not_become_what_is_usual():
    columns = {"entropy": lambda n: 2.6 if n == 1 else 0.05, "reward__mean": lambda n: 0.4 if n < 4 else 0.1}
    assert names(lines(10, **columns)) == ["entropy collapse"]
    assert names(lines(40, **columns)) == ["entropy collapse"], "as it is later"
    assert names(lines(9, **columns)) == []


def test_a_reward_that_is_constant_but_for_rounding_gives_no_signal():
    assert names(lines(reward__std=1.4e-17, reward__mean=0.5)) == ["no signal"]


def test_a_reward_that_looks_at_the_prompt_alone_gives_no_signal():
    assert names(lines(groups__equal_rewards=1.0)) == ["no signal"]
    assert names(lines(groups__equal_rewards=late(1.0, 0.0, since=56))) == []
    assert names(lines(groups__equal_rewards=0.85)) == [], "a task that is nearly solved"


def test_where_turns_have_advantages_they_tell_whatever_the_episodes_earn():
    solved = {"reward__std": 0.0, "reward__mean": 1.0, "groups__equal_rewards": 1.0}
    assert names(lines(**solved)) == ["no signal"]
    assert names(lines(**solved, groups__equal_advantages=0.4)) == [], "the turns differ, and are trained"
    (found,) = alarms(lines(groups__equal_rewards=0.0, groups__equal_advantages=1.0))
    assert found.name == "no signal"
    assert found.evidence == "in 100% of the groups of the last 5 steps all turns count alike"
    begun = lines(**solved, groups__equal_advantages=late(1.0, None, since=57))
    assert names(begun) == [], "a run that went on under a release that says it: three steps are too few"


def test_entropy_may_fall_as_long_as_the_run_learns():
    assert names(lines(entropy=late(0.01, 0.5, since=40))) == []


def test_reward_that_rises_while_held_out_prompts_get_worse_is_suspect():
    falling = [{"pass@1": 0.6 - 0.05 * n} for n in range(4)]
    assert names(lines(), falling) == ["reward hacking suspected"]
    assert names(lines(), falling[:3]) == []
    assert names(lines(), [*falling[:3], {"pass@1": 0.7}]) == []


def test_evaluations_of_other_prompts_are_not_compared_with_the_newest():
    falling = [{"pass@1": 0.6 - 0.05 * n, "data_digest": "a" if n < 2 else "b"} for n in range(4)]
    assert names(lines(), falling) == []
    falling += [{"pass@1": 0.3 - 0.05 * n, "data_digest": "b"} for n in range(2)]
    assert names(lines(), falling) == ["reward hacking suspected"]


def test_nothing_is_said_of_a_run_that_has_said_nothing():
    assert alarms([]) == []
    assert alarms([{}], [{}]) == []


def test_rules_look_at_the_keys_that_are_named_and_at_no_other_ones():
    asked = set()

    class Line(dict):
        def get(self, key, default=None):
            asked.add(key)
            return super().get(key, default)

    for _, columns in [*FAILING, ("", dict.fromkeys(ENGINE, 1e9))]:
        alarms([Line(line) for line in lines(**columns)], bound=2)
    assert asked == set(KEYS), (
        f"{asked ^ set(KEYS)}: KEYS of controller/history/alarms.py names what rules read, no more and no "
        "less; of a live run nothing else is held"
    )
