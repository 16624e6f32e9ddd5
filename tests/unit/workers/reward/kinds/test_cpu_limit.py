"""A limit of CPU time around a verdict leaves the process's own limit as it was."""

import multiprocessing
import resource

import pytest

from workers.reward.kinds.cpu_limit import within


def _limits_after(limits, connection):
    resource.setrlimit(resource.RLIMIT_CPU, limits)
    verdict = within(1000.0, lambda: 7)
    connection.send((verdict, resource.getrlimit(resource.RLIMIT_CPU)))


@pytest.mark.parametrize("limits", [(500, 600), (500, resource.RLIM_INFINITY)])
def test_the_limits_of_the_process_are_put_back(limits):
    context = multiprocessing.get_context("spawn")  # a hard limit stays lowered
    ours, theirs = context.Pipe()
    process = context.Process(target=_limits_after, args=(limits, theirs))
    process.start()
    theirs.close()
    found = ours.recv()
    process.join()
    assert found == (7, limits)
