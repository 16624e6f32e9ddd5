"""Evaluations in virtual time: what they cost the ledger (nothing), and that faults end none of them."""

import pytest
from test_restarts import PROMPTS, run
from test_simulated_runs import config

from controller.config.models import Config
from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.simulation import Faults, Simulation
from tests.support.fault_host import trained_once
from tests.support.sampled_seeds import sampled_seeds

SETS = {"a": {"path": "-", "max_prompts": 5}, "b": {"path": "-", "max_prompts": 3}}


def evaluated(base: Config, **evaluation) -> Config:
    tree = base.model_dump()
    tree["evaluation"] = {"every_steps": 3, "samples": 3, "threshold": 0.5, "data": SETS, **evaluation}
    return Config.model_validate(tree)


class Watched(Simulation):
    """Writes down every reservation of the ledger."""

    def __init__(self, *arguments, **keys) -> None:
        super().__init__(*arguments, **keys)
        self.reserved: list[tuple[int, int]] = []
        ledger, reserve = self.core.state.ledger, self.core.state.ledger.reserve

        def watched(group: int, policy_version: int, *, source: int) -> None:
            reserve(group, policy_version, source=source)
            self.reserved.append((group, ledger.deadline(group)))

        ledger.reserve = watched


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("max_staleness", [0, 2])
def test_every_version_that_is_due_is_evaluated_over_all_prompts(exact, max_staleness):
    settings = evaluated(config(max_staleness=max_staleness), exact=exact)
    outcome = Simulation(settings, seed=3, check_every=1).run()
    assert outcome.is_success, outcome.reason
    assert [line["policy_version"] for line in outcome.evaluations] == [0, 3, 6, 9, 12]
    for line in outcome.evaluations:
        assert (line["prompts"], line["failed"], line["responses"]) == (8, 0, 24)
        assert {name: one["prompts"] for name, one in line["sources"].items()} == {"a": 5, "b": 3}
        versions = [int(version) for version in line["tokens/by_version"]]
        assert min(versions) >= line["policy_version"]
        if exact:
            assert versions == [line["policy_version"]]
    tokens = sum(line["tokens"] for line in outcome.evaluations)
    assert outcome.summary["tokens/evaluated"] == tokens
    assert outcome.summary["evaluation/last"]["policy_version"] == 12
    assert outcome.summary["staleness/violations"] == 0
    assert len(outcome.lines) == 12


def test_an_evaluation_that_is_not_exact_mixes_versions_and_says_so():
    settings = evaluated(config(), exact=False, share=0.01, samples=8)
    outcome = Simulation(settings, seed=3, check_every=1).run()
    assert any(len(line["tokens/by_version"]) > 1 for line in outcome.evaluations)


def test_the_ledger_has_the_same_deadlines_with_and_without_evaluation():
    base = config(max_staleness=0, in_flight_batches="all")
    plain = Watched(base, seed=4, check_every=1)
    other = Watched(evaluated(base), seed=4, check_every=1)
    trained = [simulation.run().trained for simulation in (plain, other)]
    assert trained[0] == trained[1]
    assert plain.reserved == other.reserved
    assert len(other.outcome.evaluations) == 5


def test_staleness_is_counted_over_trained_trajectories_alone():
    outcome = Simulation(evaluated(config(max_staleness=1)), seed=5).run()
    assert sum(outcome.summary["staleness/hist"].values()) == 12 * 4 * 4


def test_at_most_a_share_of_an_instances_slots_goes_to_evaluation_before_the_end():
    class Shares(Simulation):
        def __init__(self, *arguments, **keys) -> None:
            super().__init__(*arguments, **keys)
            self.most = {True: 0, False: 0}

        def _deliver(self, event) -> None:
            super()._deliver(event)
            running = [instance.evaluating for instance in self.core.state.registry.instances()]
            ends = self.core.state.ending is not None
            self.most[ends] = max(self.most[ends], *running, 0)

    sets = {"a": {"path": "-", "max_prompts": 40}}
    simulation = Shares(evaluated(config(), exact=False, share=0.25, data=sets), seed=6, check_every=1)
    assert simulation.run().is_success
    assert simulation.most == {False: 8, True: 32}  # of 32 slots


@pytest.mark.parametrize("seed", sampled_seeds(3, 48))
def test_lost_workers_end_no_evaluation(seed):
    """Kills, hangs, slow links and stragglers, over bounds, with and without partial rollout."""
    base = config(
        max_staleness=seed % 4, partial_rollout=seed % 3 != 0, keep_kv=seed % 5 == 1,
        in_flight_batches="auto" if seed % 2 else "all", spare_groups=seed % 2, spare_responses=seed // 2 % 2,
        migration=("gap", "none", "benefit")[seed % 3],
    )  # fmt: skip
    limits = base.controller.model_copy(update={"respawns": 1000})
    settings = evaluated(base.model_copy(update={"controller": limits}), exact=seed % 2 == 0)
    faults = Faults(rollout_kills=0.03, reward_kills=0.01, slow_links=0.02, stragglers=0.02, late_share=0.05)
    outcome = Simulation(settings, seed=seed, faults=faults, check_every=1).run()
    assert outcome.is_success, outcome.reason
    assert len(outcome.lines) == 12
    done = [line["policy_version"] for line in outcome.evaluations]
    assert done[-1] == 12
    assert done == sorted(set(done))
    skipped = outcome.summary["counts"].get("evaluations/skipped", 0)
    assert len(done) + skipped == 5
    assert all(line["prompts"] == 8 for line in outcome.evaluations)
    if settings.evaluation.exact:
        assert all(len(line["tokens/by_version"]) == 1 for line in outcome.evaluations)


@pytest.mark.parametrize("seed", sampled_seeds(2, 24))
def test_killed_controllers_go_on_with_the_evaluation_that_they_were_in(seed):
    base = config(max_staleness=seed % 3, steps=12)
    limits = base.controller.model_copy(update={"respawns": 50})
    settings = evaluated(base.model_copy(update={"controller": limits}), exact=seed % 2 == 0)
    simulation, outcome = run(
        settings, seed=seed, controller_deaths=0.008, trainer_deaths=0.004, snapshots=0.02 * (seed % 2)
    )
    assert outcome.is_success, outcome.reason
    counts = outcome.summary["counts"]
    assert counts["evaluations/complete"] + counts.get("evaluations/skipped", 0) == 5
    reports = simulation.core.evaluation.reports
    versions = [line["policy_version"] for line in reports]
    assert versions == sorted(set(versions))
    assert versions[-1] == outcome.summary["evaluation/last"]["policy_version"] == 12
    trained = trained_once(simulation, steps=12)
    assert trained == list(range(PROMPTS))
    assert max(trained) < FIRST_EVALUATION_GROUP


def test_the_run_ends_with_an_evaluation_when_the_data_ends_before_its_steps():
    settings = evaluated(config(steps=100))
    outcome = Simulation(settings, seed=2, prompts=21, check_every=1).run()
    assert outcome.is_success
    assert outcome.reason.startswith("The data ended after 5 train steps; 1 group was left over")
    assert [line["policy_version"] for line in outcome.evaluations] == [0, 3, 5]


def test_an_evaluation_that_comes_due_too_often_is_skipped_and_that_is_said():
    settings = evaluated(config(), every_steps=1, samples=40, share=0.01, exact=False)
    outcome = Simulation(settings, seed=2, check_every=1).run()
    done = [line["policy_version"] for line in outcome.evaluations]
    assert outcome.summary["counts"]["evaluations/skipped"] == 13 - len(done) > 0
    assert any("is skipped" in text and "evaluation.share" in text for text in outcome.warnings)
