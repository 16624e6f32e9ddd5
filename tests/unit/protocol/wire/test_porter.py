"""Who waits at a port without a key: a bounded number, of which the oldest makes room for the newest."""

import os
import socket

from protocol.wire.porter import ACCEPTED, SURE_S, Porter


def porter(most):
    return Porter("tcp://127.0.0.1:29500", most=most)


def test_the_oldest_of_an_address_makes_room_when_that_address_has_half():
    guard = porter(8)
    assert [guard.come(fd, "10.0.0.1", 0.0) for fd in range(4)] == [None] * 4
    assert guard.come(4, "10.0.0.1", 0.1) == 0
    assert guard.come(5, "10.0.0.1", 0.2) == 1
    assert guard.come(9, "10.0.0.2", 0.3) is None  # others have not lost a place
    assert len(guard) == 5


def test_the_oldest_of_all_makes_room_when_all_places_are_taken():
    guard = porter(8)
    assert [guard.come(fd, f"10.0.0.{fd}", 0.0) for fd in range(8)] == [None] * 8
    assert guard.come(8, "10.0.1.1", 0.1) == 0
    assert len(guard) == 8


def test_who_has_spoken_or_left_or_been_there_too_long_for_a_stranger_waits_no_more():
    guard = porter(4)
    for fd in range(3):
        guard.come(fd, f"10.0.0.{fd}", 0.0)
    guard.gone(0)
    guard.gone(0)
    assert len(guard) == 2
    assert guard.come(7, "10.0.0.7", SURE_S + 0.1) is None
    assert len(guard) == 1


def test_a_number_that_comes_again_is_another_connection():
    guard = porter(4)
    assert [guard.come(3, "10.0.0.1", 0.1 * n) for n in range(9)] == [None] * 9
    assert len(guard) == 1


def test_the_addresses_of_one_network_of_64_bits_are_one():
    guard = porter(8)
    assert [guard.come(fd, f"2001:db8::{fd:x}", 0.0) for fd in range(5)] == [None] * 4 + [0]
    assert [guard.come(fd, f"::ffff:10.0.0.{fd}", 0.0) for fd in range(10, 14)] == [None] * 4


def test_only_a_connection_that_was_accepted_at_the_port_is_ended():
    listener = socket.create_server(("127.0.0.1", 0))
    guard = Porter(f"tcp://127.0.0.1:{listener.getsockname()[1]}", most=2)
    far = socket.create_connection(listener.getsockname())
    near, _ = listener.accept()
    elsewhere = socket.create_server(("127.0.0.1", 0))
    theirs = socket.create_connection(elsewhere.getsockname())
    pipe = os.pipe()
    for number in (pipe[0], elsewhere.fileno(), listener.fileno(), 987_654):
        assert not guard.hear(ACCEPTED, number, 0.0)  # closed, and the number another's, before it was heard
    assert len(guard) == 0
    assert not guard.hear(ACCEPTED, theirs.fileno(), 0.0)
    assert guard.hear(ACCEPTED, near.fileno(), 0.1)  # the other one is not of this port, and lives
    near_by, _ = elsewhere.accept()
    theirs.sendall(b"still there")
    assert near_by.recv(99) == b"still there"
    assert guard.hear(ACCEPTED, theirs.fileno(), 0.2)
    assert far.recv(1) == b""
    for one in (listener, far, near, elsewhere, theirs, near_by):
        one.close()
    for number in pipe:
        os.close(number)
