"""What metrics.jsonl says of episodes."""

import pytest

from controller.core.commands import ReportStep
from controller.core.events import Tick
from controller.core.state.accounts import Devices
from controller.core.state.agents.episode_figures import EpisodeFigures, episode_metrics
from controller.core.state.agents.episodes import Episode
from controller.core.state.batches.contributions import Contribution
from protocol import messages
from tests.support.agent_run import AgentRun
from tests.support.batch_line import batch_metrics
from tests.support.core_run import Run


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
        "episode/sampled_tokens/mean": 0.0, "environment/wait_s": 0.0,
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


def one_step(run):
    finished = run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    [line] = [command.metrics for command in finished if isinstance(command, ReportStep)]
    return line


def test_a_line_says_where_the_time_of_episodes_went_and_what_turns_took_beside():
    run = AgentRun(trainer={"batch_groups": 1})
    run.now = 2.0  # each event takes 10 ms more; both environments took as long to begin
    for episode in (0, 1):
        run.ask(0, episode)
    run.now += 3.0  # the policy has the word
    for episode in (0, 1):
        run.sample(0, episode, count=4)
    run.now += 1.0  # the environment
    run.ask(0, 1)
    run.sample(0, 1, count=2)
    run.end(0, 0, 0.0, awaited=((0, 0, 3030.0),))
    run.end(0, 1, 1.0, awaited=((1, 0, 3022.0), (1, 1, 0.5)))
    line = one_step(run)
    assert line["episode/sampled_tokens/mean"] == 5.0
    assert line["environment/wait_s"] == pytest.approx(2.93)
    assert line["environment/share"] == pytest.approx(0.4921, abs=1e-4)
    assert line["turn/overhead_ms/p50"] == pytest.approx(2.0, abs=1e-6)
    assert line["turn/overhead_ms/p99"] == pytest.approx(10.0, abs=1e-6)


def test_an_episode_that_times_out_has_waited_for_its_environment_all_that_time():
    run = AgentRun(trainer={"batch_groups": 1}, agent={"turn_timeout_s": 5.0})
    for episode in (0, 1):
        run.ask(0, episode)
    for episode in (0, 1):
        run.sample(0, episode)
    run.end(0, 0)
    run.do(Tick(), at=run.now + 5.0)
    line = one_step(run)
    assert line["ending/timeout"] == 1
    assert line["environment/wait_s"] == pytest.approx(2.5, abs=0.1)


def test_a_line_says_what_share_of_prompts_engines_had_kept():
    run = AgentRun(trainer={"batch_groups": 1})
    for episode in (0, 1):
        run.ask(0, episode)
    for episode in (0, 1):
        run.sample(0, episode)
        run.end(0, episode, float(episode))
    status = run.core.state.registry.instances()
    load = messages.InstanceStatus(1, 0, 0, 0, 0, 1, 8, 0.1, 30, 0.1, 9, 0, (), 0, 10)
    run.say("rollout-0", load)
    assert [one.status for one in status] == [load]
    assert one_step(run)["kv/reused"] == 0.25
    run.say("rollout-0", messages.InstanceStatus(2, 0, 0, 0, 0, 1, 8, 0.1, 60, 0.1, 9, 0, (), 0, 40))
    accounts = run.core.state.accounts
    assert (accounts.prefilled, accounts.reused) == (60, 40), "engines count from their start"
    assert accounts._reused() == {"kv/reused": 0.5}, "of 30 and 30 since the last line"
    assert accounts._reused() == {}


def test_a_line_says_how_episodes_ended_and_what_failed_since_the_last_one():
    run = AgentRun(trainer={"batch_groups": 1}, prompts=4)
    run.ask_all()
    run.fail(0, 1)
    assert run.counts["episodes/retried"] == 1
    run.ask(0, 1)
    for episode in (0, 1):
        run.sample(0, episode)
    run.end(0, 0, ending="turns")
    run.end(0, 1)
    first = {"episodes/failed": 1, "episodes/retried": 1, "episodes/diverged": 0, "episodes/replayed": 0}
    first |= {f"ending/{ending}": 0 for ending in ("tokens", "context", "length", "timeout")}
    line = one_step(run)
    told = {key: value for key, value in line.items() if key.startswith(("episodes/", "ending/"))}
    assert told == first | {"ending/stop": 1, "ending/turns": 1}
    accounts = run.core.state.accounts
    assert not any(accounts._episodes.take(accounts.counts).values()), "the line before has told it"


def test_a_run_without_an_agent_has_no_line_of_endings():
    finished = Run(rollout={"group_size": 1})
    assert not finished.core.state.accounts.given
    line = finished.core.state.accounts.step_line(
        1.0, step=1, batch={"trajectories": 1, "reward/mean": 0.0}, trainer={}, more={}, devices=Devices()
    )
    assert not [key for key in line if key.startswith(("episodes/", "ending/"))]


def played() -> Episode:
    """One whose environment took 1 s, its policy 2 s, and its environment 3 s again."""
    episode = Episode(0, 1)
    episode.wait(10.0, 60.0)
    episode.go_on(11.0)
    episode.wait(13.0, 60.0)
    return episode


def test_times_are_of_the_attempt_that_came_to_an_end():
    episode = played()
    episode.conclude(16.0, [])
    assert episode.waited == (4.0, 2.0)
    again = played()
    again.leave()  # its worker was lost, and another begins it
    again.wait(20.0, 60.0)
    again.go_on(20.5)
    again.wait(20.75, 60.0)
    again.conclude(20.75, [])
    assert again.waited == (0.5, 0.25)


def test_what_a_worker_says_of_turns_counts_for_those_that_were_asked_and_not_below_nothing():
    episode = played()
    episode.add(messages.Ask(0, 1, 0, 0, 1, 0, 0, 3, "d", 5), begins=0, now=11.0)
    episode.asked[1, 0].took_s = 2.0
    episode.conclude(16.0, [(1, 0, 2005.0), (1, 0, 1000.0), (7, 7, 1.0)])
    assert episode.overhead_ms == (5.0, 0.0)
