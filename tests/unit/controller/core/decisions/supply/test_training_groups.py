"""A filter that lets nothing through: when it is told, and when it ends the run."""

from protocol import messages
from tests.unit.controller.core.decisions.workers.test_limits import LIMITS, STALENESS, Run, told


def filtered(count, *, kept_after=None, **limits):
    """A run whose filter drops one group after another."""
    run = Run(prompts=count + 5, group_size=2, staleness={**STALENESS, "filter": "zero_variance"},
              limits={**LIMITS, **limits})  # fmt: skip
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    for group in range(count):
        if run.end is None:
            run.finish(group, 0)
            run.finish(group, 1)
            rewards = (0.0, 1.0) if group == kept_after else (1.0, 1.0)
            run.say("reward-0", messages.GroupScored(group, 1, rewards))
    return run


def test_a_filter_that_lets_nothing_through_is_told_at_4_16_64_batches_and_ends_the_run():
    run = filtered(80, filtered_batches=70)
    warned = [text for text in run.said if "groups in a row were dropped" in text]
    assert [text.split()[0] for text in warned] == ["4", "16", "64"]
    assert "staleness.filter `zero_variance`, the last with the rewards 1, 1" in warned[0]
    assert "the run ends after 70 of them (limits.filtered_batches)" in warned[0]
    assert not run.end.is_success
    assert run.end.reason.startswith("70 groups in a row were dropped")
    assert "limits.filtered_batches allows 70 batches of 1" in run.end.reason


def test_a_filter_that_lets_nothing_through_goes_on_for_ever_if_it_is_to():
    run = filtered(80, filtered_batches=0)
    assert run.end is None
    assert told(run, "64 groups in a row were dropped")


def test_a_group_that_passes_the_filter_begins_the_count_again():
    run = filtered(9, kept_after=3)
    assert [text.split()[0] for text in run.said if "in a row were dropped" in text] == ["4"]
