"""Windows of prompts: when one is made, in which order its groups start, and what is said of odd ones."""

from dataclasses import replace

import pytest

from controller.core.commands import Warn
from controller.core.events import PromptsRead, Tick
from protocol import messages
from protocol.messages import GroupScored
from tests.support.core_run import Run

BATCHES = 2


def run(*, instances=0, **staleness):
    """Without an instance nothing starts."""
    return Run(
        instances=instances,
        rollout={"instances": instances, "group_size": 1, "max_response_tokens": 100, "max_running": 4},
        trainer={"batch_groups": 2, "baseline": "none", "advantage_scale": "none"},
        staleness={
            "max_staleness": 1,
            "mu": 0.0,
            "synchronization": "greedy",
            "sampler": "similar_length",
            "sampler_batches": BATCHES,
            **staleness,
        },
    )


def read(one, first, prompts, *, is_end=False):
    groups = range(first, first + len(prompts))
    one.do(PromptsRead(first, len(prompts), is_end, (), tuple(prompts)))
    one.say("reward-0", messages.PromptsEncoded(tuple((group, 3) for group in groups), ()))
    return [command.text for command in one.commands if isinstance(command, Warn)]


def know(one, lengths):
    """As after an epoch in which the responses to these prompts were so long."""
    for prompt, length in lengths.items():
        one.core.state.windows.lengths.observe(prompt, 0, [length])


def test_a_window_is_ordered_when_it_is_whole_and_what_is_alike_stands_together():
    one = run()
    know(one, {11: 50, 12: 5, 13: 60, 14: 6})
    read(one, 0, [11, 12, 13])
    assert not one.core.state.fresh
    assert list(one.core.state.windows.waiting) == [0, 1, 2]
    read(one, 3, [14])
    assert sorted([*one.core.state.fresh][:2]) in ([0, 2], [1, 3])
    assert sorted([*one.core.state.fresh][2:]) in ([0, 2], [1, 3])
    assert {one.core.state.groups[group].window for group in range(4)} == {0}


def test_the_next_window_waits_until_the_last_one_runs_out():
    one = run()
    read(one, 0, [11, 12, 13, 14])
    read(one, 4, [15, 16, 17, 18])
    state = one.core.state
    assert (list(state.fresh), list(state.windows.waiting)) == ([0, 1, 2, 3], [4, 5, 6, 7])
    state.fresh.popleft()
    state.fresh.popleft()
    one.do(Tick())
    assert list(state.windows.waiting) == [4, 5, 6, 7]
    state.fresh.popleft()
    one.do(Tick())
    assert list(state.fresh) == [3, 4, 5, 6, 7]
    assert state.windows.opened == 2


def test_a_sampler_is_told_which_window_it_is_and_chance_is_alike_in_each_replay():
    seeds = []
    for _ in range(2):
        one, views = run(), []
        one.core.state.strategies = replace(
            one.core.state.strategies, sample=lambda view, views=views: views.append(view) or range(4)
        )
        read(one, 0, [11, 12, 13, 14])
        one.core.state.fresh.clear()
        read(one, 4, [11, 12, 13, 14])
        seeds.append([view.seed for view in views])
        assert [view.number for view in views] == [0, 1]
    assert seeds[0] == seeds[1]
    assert len({*seeds[0]}) == 2


def test_what_is_left_at_the_end_of_the_data_is_a_window_too():
    one = run()
    read(one, 0, [11, 12, 13], is_end=True)
    assert list(one.core.state.fresh) == [0, 1, 2]


def test_a_window_is_read_ahead_beside_what_starts():
    one = run()
    assert one.core.scoring.reading > 64
    plain = run(sampler="in_order")
    assert one.core.scoring.reading == plain.core.scoring.reading + 2 * BATCHES


def test_a_group_that_is_scored_teaches_what_its_prompt_brings():
    one = run(instances=1)
    read(one, 0, [11, 12, 13, 14])
    routes = one.sent(messages.Route)
    one.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    one.generate(routes[0], 7)
    assert one.core.state.windows.lengths.expect([(11, 0)])[0].seen == 1
    assert one.core.state.windows.lengths.expect([(12, 0)])[0].seen == 0
    one.say("reward-0", GroupScored(routes[0].group, 1, (1.0,)))


@pytest.mark.parametrize(
    ("prompts", "text"),
    [
        ([0, 0, 0, 0], "The prompts have no identity"),
        ([5, 5, 5, 6], "A window of 4 prompts has only 2 different ones"),
    ],
)
def test_prompts_that_make_no_window_are_told_in_one_sentence(prompts, text):
    assert [found for found in read(run(), 0, prompts) if text in found]


def test_prompts_start_in_the_order_of_the_data_without_a_sampler():
    one = run(sampler="in_order")
    know(one, {11: 50, 12: 5, 13: 60, 14: 6})
    read(one, 0, [11, 12, 13, 14])
    assert list(one.core.state.fresh) == [0, 1, 2, 3]
    assert not one.core.state.windows.opened
