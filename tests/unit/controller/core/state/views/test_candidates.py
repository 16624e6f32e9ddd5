"""The candidates among instances, against sorting all of them."""

import random

from controller.core.state.views.candidates import Candidates


def test_the_candidates_agrees_with_sorting_everything():
    rng = random.Random(4)
    candidates, truth = Candidates(), {}
    for _ in range(3000):
        number, version, key = rng.randrange(40), rng.randrange(3), rng.randrange(10)
        if rng.random() < 0.2:
            candidates.drop(number)
            truth.pop(number, None)
        else:
            candidates.put(number, version, key)
            truth[number] = (version, key)
        asked = rng.randrange(3)
        found = candidates.best(asked, 4)
        expected = sorted((key, n) for n, (version, key) in truth.items() if version == asked)
        assert found == [n for _, n in expected[:4]]
        even = candidates.best(asked, 2, lambda number: number % 2 == 0, looks=5)
        assert even == [n for _, n in expected[:5] if n % 2 == 0][:2]
        assert candidates.versions() == sorted({version for version, _ in truth.values()}, reverse=True)


def test_those_without_a_free_row_are_passed_over_and_counted():
    rng = random.Random(5)
    candidates, truth = Candidates(), {}
    for turn in range(1500):
        number, key = rng.randrange(300), (rng.random() < 0.3, rng.randrange(60))
        candidates.put(number, number % 2, key[1], is_full=key[0])
        truth[number] = key
        assert len(candidates) == len(truth)
        count = 150 if turn % 50 == 0 else 4
        expected = sorted((key, n) for n, key in truth.items() if n % 2 == 0)
        found, seen = candidates.look(0, count, lambda n: n % 3 == 0, looks=120)
        free = [n for key, n in expected if not key[0]][:120]
        assert found == [n for n in free if n % 3 == 0][:count]
        assert seen == (free if len(found) < count else free[: free.index(found[-1]) + 1])
