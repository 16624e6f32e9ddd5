"""What the objective makes of the cap: fewer groups where age counts more than speed."""

import pytest

from strategies.admission import adaptive as admit
from strategies.pacing import FRESH, THROUGHPUT, Objective, Pace, StepView, adaptive, next_cap, objective_of
from strategies.views import AdmissionView

VIEW = AdmissionView(3, 8, 5, 4, 6, 2, 56, cap=16.0)


def cap(objective, *, cap=16.0, starved=0.3, elasticity=0.8):
    view = VIEW._replace(cap=cap)
    return next_cap(view, starved=starved, late=0.0, elasticity=elasticity, objective=objective)


def test_a_starved_trainer_gets_more_groups_only_up_to_what_freshness_allows():
    assert cap(THROUGHPUT) > 16.0
    assert cap(FRESH) == 16.0
    assert cap(FRESH, cap=14.0) > 14.0
    assert cap(FRESH, cap=30.0) == 16.0


def test_freshness_lets_the_cap_fall_where_nobody_waits():
    assert cap(FRESH, starved=0.0) < 16.0


def test_a_number_is_the_least_that_one_more_batch_has_to_bring():
    assert cap(Objective(least_gain=0.3), elasticity=0.8) > 16.0  # 0.8 / 2 batches
    assert cap(Objective(least_gain=0.5), elasticity=0.8) < 16.0


@pytest.mark.parametrize(
    ("wanted", "objective"),
    [("throughput", THROUGHPUT), ("fresh", FRESH), (0.05, Objective(least_gain=0.05))],
)
def test_an_objective_is_what_the_configuration_says(wanted, objective):
    assert objective_of(wanted) == objective


def test_the_rule_of_pacing_hears_of_the_objective():
    starving = Pace(16.0, starved=0.3)
    step = StepView(starving, VIEW, 0.2, 0.3, False)
    assert adaptive(step)[0] > 16.0
    assert adaptive(step._replace(objective=FRESH))[0] == 16.0


def test_fresh_groups_wait_for_new_weights_even_where_no_deadline_presses():
    waiting = VIEW._replace(train_version=5, published_version=4, is_tail_bound=False)
    assert admit(waiting, "auto") == 8
    assert admit(waiting._replace(is_fresh=True), "auto") == 0
