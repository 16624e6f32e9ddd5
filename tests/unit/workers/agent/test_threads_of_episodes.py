"""What an episode leaves to threads goes with it, be it running or still waiting for one."""

from threading import Event

from workers.agent.process import EpisodeThreads, _number


def test_calls_that_wait_for_a_thread_are_given_up_with_their_episode():
    threads, may_end, begun = EpisodeThreads(1), Event(), Event()

    def hang():
        begun.set()
        may_end.wait()

    of_an_episode = _number.set(7)
    try:
        hanging = threads.submit(hang)
        waiting = [threads.submit(int) for _ in range(3)]
    finally:
        _number.reset(of_an_episode)
    try:
        assert begun.wait(60)
        assert threads.let_go(7), "one that hangs takes the place of none"
        assert all(future.cancelled() for future in waiting)
        assert not hanging.done()
        assert threads.submit(int).result(60) == 0
    finally:
        may_end.set()
        threads.shutdown()
