"""Runs whose groups leave nothing to train on, as episodes that come to a limit count for nothing."""

import pytest

from controller.core.commands import Warn
from tests.support.agent_run import AgentRun


def masked(run: AgentRun, group: int, ending="tokens"):
    """All that is said while both episodes of a group come to a limit, or the last one to its end."""
    for episode in (0, 1):
        run.ask(group, episode)
    for episode in (0, 1):
        run.sample(group, episode)
    commands = run.end(group, 0, ending="tokens") + run.end(group, 1, ending=ending)
    return [command.text for command in commands if isinstance(command, Warn)]


@pytest.fixture
def made():
    def make(groups, **limits):
        return AgentRun(
            prompts=groups + 9, agent={"on_limit": "mask"}, trainer={"batch_groups": 1}, limits=limits
        )

    return make


def test_groups_that_count_for_nothing_are_told_of_and_end_the_run(made):
    run = made(9, filtered_batches=6)
    (told,) = [text for group in range(6) for text in masked(run, group)]
    words = (
        "4 groups in a row had only episodes that came to a limit, the last to `tokens`, and agent.on_limit"
    )
    assert told.startswith(f"{words} is `mask`")
    assert told.endswith("; the run ends after 6 of them (limits.filtered_batches).")
    assert "6 groups in a row" in run.core.state.ending
    assert "Raise the limit, or set `score`. limits.filtered_batches allows 6" in run.core.state.ending
    assert not run.core.state.ending_is_success


def test_one_episode_that_counts_begins_the_count_again(made):
    run = made(9, filtered_batches=3)
    for group in range(6):
        masked(run, group, ending="stop" if group == 2 else "tokens")
        assert (run.core.state.ending is None) == (group < 5)
