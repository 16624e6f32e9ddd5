"""How much a program may print before its limit counts as reached."""

import os

import pytest

from workers.sandbox.supervisor import Run


@pytest.mark.parametrize(
    ("said", "kept", "limit"),
    [
        ([b"ab", b"cd"], b"abcd", ""),
        ([b"abc", b"de"], b"abcd", "output"),
        ([b"abcd", b"e"], b"abcd", "output"),
    ],
    ids=["exactly", "beyond", "behind"],
)
def test_a_program_may_print_exactly_as_much_as_its_limit(said, kept, limit):
    run = Run({"limits": {"output_bytes": 4}, "backend": "limits"}, -1, -1)
    reader, writer = os.pipe()
    try:
        for some in said:
            os.write(writer, some)
            assert run._hear(reader, "stdout")
        os.close(writer)
        assert not run._hear(reader, "stdout")
        assert (bytes(run.stdout), run._limit) == (kept, limit)
    finally:
        os.close(reader)
        run.close()
