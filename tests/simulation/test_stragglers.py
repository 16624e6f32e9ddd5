"""Groups of 16 of which one in ten has a response twenty times as long as the others: nobody waits for it.

The rule for late members: with `spare_responses` the first to end are kept and the others dropped; with
`spare_groups` a batch takes the groups that are there, and one that no batch can use any more is aborted.
"""

import pytest

from controller.config.models import Config
from tests.simulation.oracle.host import Host
from tests.simulation.oracle.world import Machine, World

STEPS, SHORT, LONG = 12, 10, 200


class Straggling(Host):
    """One response in 160 is twenty times as long, if there are stragglers."""

    has_stragglers = True

    def target(self, group, member):
        return LONG if self.has_stragglers and group % 10 == 3 and member == 0 else SHORT

    def prompt_tokens(self, group):
        return 4


def time_of(*, has_stragglers, **staleness):
    """Virtual seconds of a run, and its host."""
    config = Config.model_validate({
        "run": {"steps": STEPS},
        "rollout": {"instances": 4, "group_size": 16, "max_prompt_tokens": 8, "max_response_tokens": LONG,
                    "max_running": 48, "progress_s": 0.1, "status_s": 0.1},
        "trainer": {"batch_groups": 5},
        "staleness": {"max_staleness": 1, "mu": 0.0, **staleness},
    })  # fmt: skip
    machines = [Machine(f"rollout-{i}", "here", True, 48, 100_000, 20.0) for i in range(4)]
    host = Straggling(World(
        seed=1, config=config, machines=tuple(machines), prompts=None, held_out=0, faults=(), stop_s=None,
        late_share=0.0, late_s=0.0, train_s=0.5, pull_s=0.01,
        failing=dict.fromkeys(("pull", "generate", "score", "refuse"), 0.0),
    ))  # fmt: skip
    host.has_stragglers = has_stragglers
    assert host.run().is_success
    return host.clock.now, host


@pytest.mark.parametrize("spare", [{"spare_responses": 1}, {"spare_groups": 1}])
def test_a_straggler_costs_at_most_a_tenth_of_the_throughput(spare):
    without, _ = time_of(has_stragglers=False, **spare)
    with_them, host = time_of(has_stragglers=True, **spare)
    assert without / with_them >= 0.9
    dropped = host.core.snapshot().tokens.aborted
    assert dropped > 0
    assert all(item.response_tokens == SHORT for batch in host.books.batches.values() for item in batch)


def test_without_anything_to_spare_the_strict_bound_waits_for_it():
    without, _ = time_of(has_stragglers=False)
    with_them, _ = time_of(has_stragglers=True)
    assert without / with_them < 0.9
