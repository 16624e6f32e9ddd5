"""Signals while something is installed: the first one ends it, and no other one disturbs that end."""

import signal

import pytest

from install.stopping import SIGNALS, Stopping


@pytest.fixture(autouse=True)
def _handlers():
    """As on a terminal, which nohup would change; and back as they were, after the test."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_raises_and_the_others_change_nothing(number):
    steps = []

    def interrupted() -> None:
        with Stopping():
            try:
                signal.raise_signal(number)
                steps.append("too much")
            finally:
                raise_all()
                steps.append("tidied up")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    raise_all()
    assert steps == ["tidied up"]


def test_a_signal_waits_for_what_is_being_begun():
    steps = []

    def interrupted() -> None:
        with Stopping() as stopping:
            with stopping.put_off():
                signal.raise_signal(signal.SIGTERM)
                steps.append("begun")
            steps.append("too much")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert steps == ["begun"]


def test_without_a_signal_all_is_as_it_was_before():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with Stopping() as stopping:
        signal.raise_signal(signal.SIGHUP)
        with stopping.put_off():
            pass
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert before == {number: signal.getsignal(number) for number in SIGNALS}


def raise_all() -> None:
    for number in SIGNALS:
        signal.raise_signal(number)
