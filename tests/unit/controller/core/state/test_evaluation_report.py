"""pass@k and the line of an evaluation, against hand-worked examples and brute force."""

from itertools import combinations
from statistics import fmean

import pytest

from controller.core.state.evaluation_report import Answered, headline, is_better, line, pass_at_k


@pytest.mark.parametrize("samples", range(1, 8))
def test_pass_at_k_is_the_share_of_all_choices_of_k_that_hold_a_pass(samples):
    for passed in range(samples + 1):
        responses = [True] * passed + [False] * (samples - passed)
        for k in range(1, samples + 1):
            brute = fmean(any(chosen) for chosen in combinations(responses, k))
            assert pass_at_k(samples, passed, k) == pytest.approx(brute, abs=1e-12)


def test_pass_at_k_is_exact_where_a_product_of_floats_would_not_be():
    assert pass_at_k(200, 3, 100) == pytest.approx(1 - (100 * 99 * 98) / (200 * 199 * 198), abs=1e-15)
    assert pass_at_k(4096, 1, 2048) == 0.5
    assert pass_at_k(10, 6, 5) == 1.0  # fewer than k failed


@pytest.mark.parametrize(("samples", "passed", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0)])
def test_a_pass_at_k_that_has_no_meaning_is_refused(samples, passed, k):
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(samples, passed, k)


def answered(*rewards, tokens=10, version=3):
    return Answered(rewards, (tokens,) * len(rewards), 1, {version: tokens * len(rewards)})


def test_a_line_tells_of_everything_and_of_each_source_and_leaves_failures_out_of_the_means():
    prompts = {0: answered(1.0, 0.0), 1: answered(0.0, 0.0, version=4), 3: answered(1.0, 1.0, tokens=30)}
    found = line(prompts, {2: "too long"}, ["a", "a", "b", "b"], samples=2, threshold=1.0)
    assert found["prompts"] == 3
    assert found["responses"] == 6
    assert found["pass@1"] == pytest.approx((0.5 + 0 + 1) / 3)
    assert found["pass@2"] == pytest.approx((1 + 0 + 1) / 3)
    assert found["pass@1/stderr"] == pytest.approx(0.5 / 3**0.5)
    assert found["reward/mean"] == pytest.approx(0.5)
    assert found["response_length/mean"] == pytest.approx(100 / 6)
    assert found["response_length/max"] == 30
    assert found["response_length/cut"] == pytest.approx(3 / 6)
    assert found["tokens/by_version"] == {"3": 80, "4": 20}
    assert found["tokens"] == 100
    assert (found["failed"], found["failures"]) == (1, ["b, prompt 2: too long"])
    sources = found["sources"]
    assert {name: figures["pass@1"] for name, figures in sources.items()} == {"a": 0.25, "b": 1.0}
    assert sources["b"]["prompts"] == 1


def test_a_round_in_which_every_prompt_failed_has_counts_and_no_figures():
    found = line({}, {0: "x", 1: "y"}, ["a", "a"], samples=4, threshold=1.0)
    assert (found["prompts"], found["failed"]) == (0, 2)
    assert "pass@1" not in found
    assert found["sources"] == {"a": {"prompts": 0, "responses": 0}}


def test_a_reward_counts_as_passed_from_the_threshold_on():
    found = line({0: answered(0.49, 0.5, 0.9)}, {}, ["a"], samples=3, threshold=0.5)
    assert found["pass@1"] == pytest.approx(2 / 3)
    assert [key for key in found if key.startswith("pass@")] == [
        "pass@1",
        "pass@2",
        "pass@3",
        "pass@1/stderr",
    ]
    assert found["pass@1/stderr"] is None


def test_the_best_evaluation_is_the_one_with_the_best_pass_at_1_then_the_best_reward():
    low, high = {"pass@1": 0.5, "reward/mean": 0.9}, {"pass@1": 0.6, "reward/mean": 0.1}
    assert is_better(high, low)
    assert not is_better(low, high)
    assert is_better({**low, "reward/mean": 1.0}, low)
    otherwise_added = {"pass@1": 0.5850000000000001, "reward/mean": 0.5}
    assert not is_better(otherwise_added, {"pass@1": 0.585, "reward/mean": 0.9})
    assert not is_better({"prompts": 0}, low)
    assert set(headline({**low, "sources": {}, "policy_version": 4})) == {
        "pass@1",
        "reward/mean",
        "policy_version",
    }


class CountedName(str):
    """A name of a reward that counts how often it is compared with one that is another object."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        CountedName.comparisons += 1
        return str.__eq__(self, other)


def test_a_line_looks_at_each_named_reward_once_however_many_names_there_are(monkeypatch):
    monkeypatch.setattr(CountedName, "comparisons", 0)
    prompts, names = 20, 30
    prompt = Answered(
        (1.0,), (10,), 0, {0: 10}, tuple((CountedName(f"n{one:02}"), (one / 2,)) for one in range(names))
    )
    found = line(dict.fromkeys(range(prompts), prompt), {}, ["a"] * prompts, samples=1, threshold=1.0)
    assert [found[f"reward/n{one:02}"] for one in range(names)] == [one / 2 for one in range(names)]
    assert CountedName.comparisons <= 2 * prompts * names
