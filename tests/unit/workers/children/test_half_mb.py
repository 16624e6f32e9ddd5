"""What a process may take that is given no other limit: half of the memory that there is for all."""

import os

import pytest

from workers.children.process import half_mb

HALF = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 21


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
@pytest.mark.parametrize(
    ("said", "expected"),
    [("268435456\n", 128), ("max\n", HALF), ("9223372036854771712\n", HALF), ("", HALF), (None, HALF)],
)
def test_it_is_of_the_container_where_that_has_less(tmp_path, name, said, expected):
    if said is not None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(said)
    assert half_mb(tmp_path) == expected
