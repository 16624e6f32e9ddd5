"""What metrics.jsonl says of episodes."""

import pytest

from controller.core.commands import ReportStep
from controller.core.state.accounts import batch_metrics
from controller.core.state.agents.episode_figures import EpisodeFigures, episode_metrics
from controller.core.state.batches.contributions import Contribution
from protocol import messages
from tests.support.agent_run import AgentRun


def test_a_batch_without_episodes_says_nothing_of_them():
    assert episode_metrics([]) == {}
    line = batch_metrics([Contribution((), (5,), {0: 1}, 0, 0, 1.0, 0.0, {})], 0)
    assert not [key for key in line if key.startswith(("turns", "agent", "given"))]


def test_a_name_is_averaged_over_the_episodes_that_noted_it():
    line = episode_metrics(
        [EpisodeFigures(1, 3, (("calls", 2.0),)), EpisodeFigures(4, 9, (("calls", 4.0), ("wins", 1.0)))]
    )
    assert line == {
        "turns/mean": 2.5, "turns/max": 4, "given_tokens/mean": 6.0, "trajectories/mean": 1.0,
        "agent/calls": 3.0, "agent/wins": 1.0,
    }  # fmt: skip


def test_what_episodes_of_a_step_noted_is_in_its_line():
    run = AgentRun(trainer={"batch_groups": 1})
    for episode in (0, 1):
        run.ask(0, episode, given=3)
    for episode in (0, 1):
        run.sample(0, episode)
    run.ask(0, 1, given=2)
    run.sample(0, 1)
    for episode in (0, 1):
        run.end(0, episode, float(episode), metrics=(("depth", 1.0 + episode),))
    finished = run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    [line] = [command.metrics for command in finished if isinstance(command, ReportStep)]
    assert (line["turns/mean"], line["turns/max"], line["given_tokens/mean"]) == (1.5, 2, 4.0)
    assert line["agent/depth"] == pytest.approx(1.5)
