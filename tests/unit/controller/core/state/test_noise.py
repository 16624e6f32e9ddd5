"""Seeds of noise: a function of their name and of the run's rule, whatever was drawn before."""

import random
from hashlib import blake2b

import pytest

from controller.core.events import SEEDS, Started
from controller.core.state.run_state import noise
from tests.support.core_run import Run

NAMES = ["0/1.2", "0/1.2/3", "", "environment/7"] * 2


def test_noise_is_what_a_source_made_of_the_name_alone_would_give():
    assert [noise(name, "mersenne") for name in NAMES] == [
        random.Random(name).getrandbits(52) for name in NAMES
    ]


def test_noise_of_new_runs_is_the_first_52_bits_of_a_digest_of_the_name():
    digests = [blake2b(name.encode(), digest_size=8).hexdigest() for name in NAMES]
    assert [noise(name, "blake2b") for name in NAMES] == [int(digest[:13], 16) for digest in digests]


@pytest.mark.parametrize("rule", ["mersenne", SEEDS])
def test_responses_have_the_seeds_of_the_rule_with_which_the_run_was_started(rule):
    routes = Run(seeds=rule).start_groups()
    assert routes
    assert all(route.seed == noise(f"0/{route.group}.{route.member}", rule) for route in routes)


def test_a_run_that_does_not_say_its_rule_is_of_a_release_that_had_one():
    assert Started().seeds == "mersenne" != SEEDS
