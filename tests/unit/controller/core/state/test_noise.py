"""Seeds of noise: a function of their name and of the run's rules, whatever was drawn before."""

import random
from hashlib import blake2b

import pytest

from controller.core.events import OLD_RULES, RULES, Started
from controller.core.state.groups import FIRST_EVALUATION_GROUP, Group
from controller.core.state.run_state import noise
from tests.support.core_run import Run
from workers.evaluate import checkpoint

NAMES = ["0/1.2", "0/1.2/3", "", "environment/7"] * 2


def test_noise_of_older_runs_is_what_a_source_made_of_the_name_alone_would_give():
    drawn = [random.Random(name).getrandbits(52) for name in NAMES]
    assert [noise(name, OLD_RULES) for name in NAMES] == drawn


def test_noise_of_new_runs_is_the_first_52_bits_of_a_digest_of_the_name():
    digests = [blake2b(name.encode(), digest_size=8).hexdigest() for name in NAMES]
    assert [noise(name, RULES) for name in NAMES] == [int(digest[:13], 16) for digest in digests]


@pytest.mark.parametrize("rules", [OLD_RULES, RULES])
def test_responses_have_the_seeds_of_the_rules_with_which_the_run_was_started(rules):
    routes = Run(rules=rules).start_groups()
    assert routes
    assert all(route.seed == noise(f"0/{route.group}.{route.member}", rules) for route in routes)


def test_a_run_that_does_not_say_its_rules_is_of_an_older_release():
    assert Started().rules == OLD_RULES < RULES


@pytest.mark.parametrize("rules", [OLD_RULES, RULES])
def test_an_evaluation_by_a_command_plays_the_environments_of_the_run_s_own(rules):
    group = Group(FIRST_EVALUATION_GROUP, source_row=3)
    assert Run(rules=rules).core.state.environment_seed(group) == checkpoint.environment_seed(0, 3)
