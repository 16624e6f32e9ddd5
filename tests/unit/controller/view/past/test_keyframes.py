"""Keyframes keep to their room, thin out evenly, and hold once what several of them have alike."""

import random
from itertools import pairwise

from controller.durability.image.classes import InParts
from controller.view.past.keyframes import Keyframes


def noise(seed, size=1_000):
    return random.Random(seed).randbytes(size)


def sharing(number):
    """An image that has most of its parts from the one before, as batches are."""
    return InParts(noise(number), tuple(noise(-one, 4_000) for one in range(number + 1, number + 9)))


def test_what_is_put_in_is_found_as_it_was():
    keyframes = Keyframes(1 << 20)
    for number in (30, 10, 20):
        keyframes.put(number, sharing(number))
    assert keyframes.numbers == [10, 20, 30]
    assert [keyframes.find(number) for number in (10, 20, 30)] == [sharing(n) for n in (10, 20, 30)]
    assert keyframes.find(11) is None
    assert [keyframes.before(number) for number in (9, 10, 29, 99)] == [None, 10, 20, 30]


def test_parts_that_images_share_are_held_once():
    keyframes = Keyframes(1 << 30)
    keyframes.put(0, sharing(0))
    first = keyframes.size
    for number in range(1, 11):
        keyframes.put(number, sharing(number))
    assert keyframes.size < first + 10 * 5_300  # a skeleton and one new part, and the names of eight


def test_a_part_goes_with_the_last_image_that_has_it():
    keyframes = Keyframes(1 << 30)
    keyframes.put(0, sharing(0))
    before = keyframes.size
    for number in (100, 101, 102):
        keyframes.put(number, sharing(number))
    keyframes.forget_before(102)
    assert keyframes.numbers == [102]
    assert keyframes.find(102) == sharing(102)
    assert keyframes.size == before


def test_those_that_have_no_room_thin_out_evenly():
    keyframes, number = Keyframes(1 << 20, 100), 0
    while number < 1_000_000:
        number += keyframes.spacing
        keyframes.put(number, InParts(noise(number, 4_000), ()))
    gaps = [after - before for before, after in pairwise(keyframes.numbers)]
    assert 150 < len(gaps) <= 262  # of the room, not so few as halving would leave
    assert max(gaps) <= 3 * min(gaps)
    assert keyframes.size <= 1 << 20


def test_they_pass_through_a_file_and_keep_to_the_room_there():
    whole, small = Keyframes(1 << 30, 5), Keyframes(120_000)
    for number in range(0, 100, 5):
        whole.put(number, sharing(number))
    again = Keyframes(1 << 30, 1)
    again.take_over(whole.as_plain())
    assert (again.numbers, again.size, again.spacing) == (whole.numbers, whole.size, 5)
    assert again.find(50) == sharing(50)
    small.take_over(whole.as_plain())
    assert small.size <= 120_000
    assert small.find(small.numbers[1]) == sharing(small.numbers[1])
