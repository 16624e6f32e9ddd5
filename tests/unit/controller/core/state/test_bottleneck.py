"""The verdict names what bounds a run: for each cause with made-up figures, and in simulated runs that one
cause dominates."""

import pytest

from controller.config.models import Config
from controller.core.events import Restarted
from controller.core.state.bottleneck import Figures, verdict
from controller.simulation import Simulation

BASE = {
    "run": {"steps": 14},
    "rollout": {"instances": 2, "group_size": 4, "max_response_tokens": 400, "max_running": 16},
    "trainer": {"batch_groups": 4},
    "staleness": {"max_staleness": 2},
    "simulation": {
        "workload": {"prompt_tokens": 20}, "pull_s": 0.1, "train_token_s": 2e-5, "report_s": 0.1,
    },
}  # fmt: skip


def config(**sections):
    """The base with some keys replaced."""
    names = BASE | sections
    return Config.model_validate({name: BASE.get(name, {}) | sections.get(name, {}) for name in names})


def told(spent_s, *, idle=0.05, cap=3.0, bound=2, steps=10):
    return verdict(Figures(steps, spent_s, idle, cap), config(staleness={"max_staleness": bound}))


def test_both_are_busy():
    found = told({"training": 95.0, "rollout": 5.0})
    assert found.startswith("Balanced: the trainer was idle 5% of the time, rollout 5%; more of both")


def test_training_is_named_where_it_never_waits_and_where_nothing_else_takes_half_as_long():
    assert told({"training": 90.0, "rollout": 10.0}, idle=0.4).startswith("Bound by training: ")
    assert told({"training": 80.0, "rollout": 20.0}, idle=0.6).startswith("Bound by training: ")


def test_rollout_is_named_where_instances_are_busy_and_the_trainer_waits():
    found = told({"training": 40.0, "rollout": 60.0})
    assert found == (
        "Bound by rollout: the trainer was idle 60% of the time, rollout 5%; raise rollout.instances."
    )
    assert "or staleness.max_staleness." in told({"training": 40.0, "rollout": 60.0}, bound=1)


def test_instances_that_are_idle_themselves_are_not_asked_for_more_of():
    found = told({"training": 30.0, "rollout": 70.0}, idle=0.5)
    assert found.startswith("Bound by the longest responses: ")
    assert "raise staleness.max_staleness (now 2)" in found
    assert "instances" not in found


def test_scoring_is_named_whoever_is_idler():
    for idle in (0.2, 0.96):
        found = told({"training": 8.0, "scoring": 88.0, "rollout": 4.0}, idle=idle)
        assert found.startswith("Bound by scoring: the trainer was idle 92% of the time, rollout ")
        assert "raise reward.processes or reward.workers (now 1 x 1), or reward.concurrency" in found


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        (
            "scoring",
            "attach more reward workers, or raise their reward.processes (now 1), or reward.concurrency",
        ),
        ("data", "make its source faster, or attach more reward workers, which encode it."),
        ("rollout", "attach more rollout workers, or raise staleness.max_staleness."),
    ],
)
def test_a_run_that_starts_no_workers_is_told_to_attach_more(cause, advice):
    outside = config(rollout={"instances": 0}, reward={"workers": 0}, staleness={"max_staleness": 1})
    found = verdict(Figures(10, {"training": 30.0, cause: 70.0}, 0.05, 3.0), outside)
    assert advice in found
    assert "(now 0" not in found


def test_two_waits_of_like_length_are_both_told():
    found = told({"training": 40.0, "scoring": 35.0, "rollout": 25.0})
    assert found.startswith("Bound by scoring: ")
    assert "(it waited 35% for rewards, 25% for responses)" in found


@pytest.mark.parametrize(
    ("cause", "name", "advice"),
    [
        ("weights", "new weights", "trainer.lora"),
        ("data", "the data", "its source"),
        ("pace", "its own pace", "lower staleness.pace"),
        ("environments", "the environments of agents", "raise agent.prepare_groups (now 4)"),
        ("cap", "the groups in flight", "staleness.max_staleness (now 2)"),
    ],
)
def test_other_causes_have_names_and_advice_of_their_own(cause, name, advice):
    found = told({"training": 30.0, cause: 70.0}, idle=0.6)
    assert found.startswith(f"Bound by {name}: ")
    assert advice in found


def test_a_cap_below_the_bound_is_what_is_raised():
    assert "raise staleness.in_flight_batches" in told({"training": 30.0, "cap": 70.0}, idle=0.6, cap=1.0)


def test_at_bound_zero_it_is_the_order():
    found = told({"training": 50.0, "rollout": 50.0}, idle=0.5, bound=0)
    assert found.startswith("Bound by the synchronous order: ")
    assert "raise staleness.max_staleness" in found


def test_start_up_is_named_where_it_took_most_of_the_time_and_is_nobodys_idling():
    found = told({"start-up": 60.0, "training": 38.0, "rollout": 2.0}, idle=0.5)
    assert found == (
        "Bound by the start of workers, 60% of 100 s; apart from it by training: the trainer was idle 5% of "
        "the time, rollout 50%; raise trainer.ranks, or lower rollout.instances."
    )
    assert told({"start-up": 30.0, "training": 40.0}, idle=0.5).startswith("Bound by training: ")


def test_a_run_without_a_step_has_none():
    assert told({"start-up": 60.0}, steps=0).startswith("No train step was finished")


def simulated(*, seed=0, **sections):
    outcome = Simulation(config(**sections), seed=seed).run()
    assert outcome.is_success
    return outcome.summary["verdict"], outcome.summary["spent_s"]


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("rollout", {"rollout": {"instances": 1}, "simulation": {"train_token_s": 1e-6}}),
        ("training", {"simulation": {"train_token_s": 2e-3}}),
        ("scoring", {"simulation": {"score_s": 3.0, "train_token_s": 2e-3}}),
        ("the synchronous order", {"staleness": {"max_staleness": 0}, "simulation": {"train_token_s": 3e-4}}),
        ("new weights", {"staleness": {"max_staleness": 1}, "simulation": {"pull_s": 15.0}}),
        ("the groups in flight", {
            "rollout": {"instances": 8}, "staleness": {"max_staleness": 4, "in_flight_batches": 1.0},
            "simulation": {"train_token_s": 1e-6},
        }),
        ("the start of workers", {"simulation": {"attach_s": 120.0}}),
    ],
)  # fmt: skip
def test_a_simulated_run_is_told_what_bounds_it(name, sections):
    merged = {key: BASE["simulation"] | value if key == "simulation" else value
              for key, value in sections.items()}  # fmt: skip
    found, spent_s = simulated(**merged)
    assert found.startswith(f"Bound by {name}"), (found, spent_s)
    if name == "scoring":
        relieved, _ = simulated(**merged, reward={"processes": 32})
        assert relieved.startswith("Bound by training: ")


@pytest.mark.parametrize(
    ("in_flight", "more"), [(1.0, "in_flight_batches"), ("all", "max_staleness (now 3)")]
)
def test_what_is_raised_is_the_limit_that_holds_and_not_the_cap_that_would_be_found(in_flight, more):
    some = config(staleness={"max_staleness": 3, "in_flight_batches": in_flight})
    simulation = Simulation(some)
    simulation.run()
    core, state = simulation.core, simulation.core.state
    state.accounts.spent_s = {"training": 30.0, "cap": 70.0}
    for cap in (4.0, 16.0):  # one batch, and all that the bound admits
        state.pace = state.pace._replace(cap=cap)
        assert f"raise staleness.{more}" in str(core.summary()["verdict"])


class SlowSource(Simulation):
    """Rows take a while to read."""

    def _read_prompts(self, count):
        self._at(60.0, super()._read_prompts, count)


def test_a_source_of_prompts_that_is_slow_is_named():
    outcome = SlowSource(config()).run()
    assert outcome.summary["verdict"].startswith("Bound by the data: "), outcome.summary


AGENT = {"function": "t.py:f", "max_turns": 3}
SLOW = {"environment": {"turns": 2, "wait_s": 30.0}}


def test_environments_of_agents_that_are_slow_are_named_and_not_the_data():
    found, spent_s = simulated(agent=AGENT, simulation=BASE["simulation"] | SLOW)
    assert found.startswith("Bound by the environments of agents: "), (found, spent_s)
    assert "raise agent.prepare_groups (now 4) or, if all places are taken, agent.concurrency" in found
    assert spent_s.get("data", 0.0) < 1.0


def test_agent_workers_that_load_are_start_up():
    class LateAgents(Simulation):
        def _spawn(self, name, role):
            self._at(300.0 if role == "agent" else 0.0, super()._spawn, name, role)

    outcome = LateAgents(config(agent=AGENT, simulation=BASE["simulation"] | SLOW)).run()
    assert outcome.summary["spent_s"]["start-up"] > 290.0, outcome.summary["spent_s"]


def test_every_second_has_gone_to_one_cause():
    outcome = Simulation(config(simulation=BASE["simulation"] | {"score_s": 0.5})).run()
    assert sum(outcome.summary["spent_s"].values()) == pytest.approx(outcome.summary["time_s"], abs=0.01)


class StartedAgain(Simulation):
    """Its controller is started again after some steps, with workers that take long to load."""

    def _deliver(self, event):
        super()._deliver(event)
        if len(self.outcome.lines) == 7 and self.core.state.epoch == 1:
            for process in list(self._processes.values()):
                process.is_alive = False
            self._processes.clear()
            self._at(0.0, super()._deliver, Restarted(self.core.state.config.model_dump_json(), "", ()))


def test_loading_after_a_restart_is_nobodys_idling():
    slow = BASE["simulation"] | {"attach_s": 100.0, "train_token_s": 2e-3}
    outcome = StartedAgain(config(simulation=slow)).run()
    assert outcome.summary["spent_s"]["start-up"] >= 200.0
    assert outcome.summary["idle/trainer"] < 0.3, outcome.summary
    assert "by training: " in outcome.summary["verdict"]
    again = outcome.lines[7]
    assert again["idle/trainer"] < 0.3


def test_a_trainer_that_is_lost_and_loads_again_is_no_idle_trainer():
    """Instances are ready meanwhile, and versions are there from before."""

    class LateTrainer(Simulation):
        is_lost = False

        def _deliver(self, event):
            super()._deliver(event)
            if len(self.outcome.lines) == 7 and not self.is_lost:
                self.is_lost = True
                for process in [one for one in self._processes.values() if one.role == "trainer"]:
                    self._kill(process)

        def _spawn(self, name, role):
            is_late = self.is_lost and role == "trainer"
            self._at(300.0 if is_late else 0.0, super()._spawn, name, role)

    slow = BASE["simulation"] | {"train_token_s": 2e-3}
    outcome = LateTrainer(config(simulation=slow)).run()
    assert outcome.summary["spent_s"]["start-up"] >= 290.0, outcome.summary["spent_s"]
    assert outcome.lines[7]["idle/trainer"] < 0.3, outcome.lines[7]
    assert "by training: " in outcome.summary["verdict"]
