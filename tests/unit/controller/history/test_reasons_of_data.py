"""The order of a window and the shares of sources, in words."""

from controller.history import reasons_of_data
from controller.history.reasons_of_data import of_sampling, of_schedule, order_in_words, shares_in_words
from strategies.batches.samplers import SAMPLERS, PromptView, SamplingView, similar_length
from strategies.schedules import SCHEDULES, MixtureView, SourceView


def window(count: int) -> SamplingView:
    return SamplingView(tuple(PromptView(10 + n, 0, 5, float(n), 0.0) for n in range(count)), 2, 0)


def test_every_built_in_order_and_schedule_has_its_rule():
    assert {*reasons_of_data.SAMPLERS} == {*SAMPLERS.values()}
    assert {*reasons_of_data.SCHEDULES} == {*SCHEDULES.values()}


def test_a_rule_of_the_users_has_no_reasons_but_its_own():
    assert of_sampling(lambda view: [0], window(1)) is None
    assert of_schedule(lambda view: [1.0], MixtureView(0, ())) is None


def test_an_order_is_told_batch_by_batch_and_not_without_end():
    view = window(5)
    assert order_in_words(similar_length(view), view) == "groups 10, 11; then 12, 13; then 14"
    assert "0 to 54 tokens are expected" in of_sampling(similar_length, view).rule
    long = window(100)
    assert order_in_words(range(100), long).endswith("; then 72, 73, ...")


def test_shares_are_told_by_name():
    view = MixtureView(3, (SourceView("a", 1.0, 0, 0, 0.5), SourceView("b", 1.0, 0, 0, 0.1)))
    assert shares_in_words([3.0, 1.0], view) == "a 75%, b 25%"
    assert "After step 3, a: weight 1, pass rate 0.50" in of_schedule(SCHEDULES["pass_rate"], view).rule
