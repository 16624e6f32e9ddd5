"""Seeds of noise: a function of their name, whatever was drawn before."""

import random

from controller.core.state.run_state import noise


def test_noise_is_what_a_source_made_of_the_name_alone_would_give():
    names = ["0/1.2", "0/1.2/3", "", "environment/7"] * 2
    assert [noise(name) for name in names] == [random.Random(name).getrandbits(52) for name in names]
