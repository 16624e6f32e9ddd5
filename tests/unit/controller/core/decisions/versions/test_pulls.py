"""What the strategy that says who pulls is shown of an instance."""

from dataclasses import replace

import pytest

from strategies.cost_model import prefill_s
from tests.support.core_run import Run


def shown_views(**staleness):
    """The views of one instance with work, when version 1 comes out."""
    run, shown = Run(staleness={"max_staleness": 1, "mu": 0.0, **staleness}), []
    for route in run.start_groups(2):
        run.generate(route, 4, ending="")
    state = run.core.state
    state.strategies = replace(
        state.strategies, synchronize=lambda views, settings: shown.append(views) or []
    )
    run.publish(1)
    instance = next(state.registry.instances())
    return instance, shown[0][0]


def test_a_pull_costs_the_prefill_of_each_response_that_it_interrupts():
    instance, view = shown_views(keep_kv=False)
    assert len(instance.running) == 4
    each = prefill_s(view.coefficients, instance.resident_tokens / 4)
    assert view.restart_s == pytest.approx(4 * each)


def test_a_pull_that_keeps_the_kv_costs_no_prefill():
    _, view = shown_views(keep_kv=True)
    assert view.restart_s == 0.0
