"""Text of others: what drives a terminal is shown, what people read stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RemoteError
from protocol.messages import MAX_TEXT_CHARS, Attach, CheckpointSaved, Detach, Serving, TrainStepFinished
from protocol.plain_text import (
    MOST_REASON_CHARS,
    begin_and_end,
    begin_of,
    has_half_characters,
    is_plain_line,
    plain,
    plain_line,
)
from protocol.wire.codec import from_fields, pack, to_fields, unpack

ESCAPES = "\x1b]0;pwned\x07\x1b[2J"
SHOWN = r"\x1b]0;pwned\x07\x1b[2J"
TRACEBACK = (
    'Traceback (most recent call last):\n\tFile "reward.py", line 3\nValueError: größer als 3 → 你好 🙂'
)


def test_a_terminals_orders_are_shown_and_not_given():
    assert plain(f"a{ESCAPES}b") == f"a{SHOWN}b"
    assert plain("50 %\r100 %\x7f\x9b2J\u202eevil\u2028\ud800") == (
        r"50 %\r100 %\x7f\x9b2J\u202eevil\u2028\ud800"
    )


def test_a_traceback_stays_as_it_is_and_a_name_stays_on_its_line():
    assert plain(TRACEBACK) == TRACEBACK
    assert plain(TRACEBACK.replace("\n", "\r\n")) == TRACEBACK
    assert plain_line("node\n1\t2") == r"node\n1\t2"


@given(st.text(st.characters()))
def test_what_is_plain_stays(text):
    assert plain(plain(text)) == plain(text)
    assert is_plain_line(plain_line(text))
    assert not any(ord(c) < 32 and c not in "\n\t" for c in plain(text))


def test_a_workers_words_are_made_plain_where_they_enter():
    came = from_fields(Detach.tag, (f"{ESCAPES}{TRACEBACK}",))
    assert came == Detach(f"{SHOWN}{TRACEBACK}")
    assert from_fields(Detach.tag, to_fields(came)) == came
    longest = from_fields(Detach.tag, ("\x1b" * MAX_TEXT_CHARS,))
    assert from_fields(Detach.tag, to_fields(longest)) == longest  # the journal takes what the wire took


@pytest.mark.parametrize(
    "refused",
    [
        Attach("rollout", f"node{ESCAPES}", 1, "here"),
        Attach("rollout", "node\nwarning: all is lost", 1, "here"),
        Attach("rollout", "node", 1, "\u202ehere"),
        TrainStepFinished(1, 0.1, (("\x1b[2J", 1.0),)),
        CheckpointSaved(1, "/c\n/d"),
        Serving("tcp://10.0.0.1:5000\n"),
        Serving("tcp://[::1:5000"),
        Serving("tcp://a b:5000"),
        Serving("tcp://10.0.0.1:0"),
        Serving("ipc:///tmp/socket"),
    ],
    ids=repr,
)
def test_names_places_and_endpoints_with_more_than_their_own_characters_are_refused(refused):
    with pytest.raises(RemoteError, match="is malformed at"):
        from_fields(refused.tag, to_fields(refused))


@pytest.mark.parametrize(
    "endpoint", ["tcp://10.0.0.1:5000", "tcp://[fe80::1%eth0]:65535", "tcp://node-1.example:1"]
)
def test_endpoints_that_sockets_name_are_taken(endpoint):
    assert from_fields(Serving.tag, (endpoint,)) == Serving(endpoint)


@pytest.mark.parametrize(
    ("text", "is_half"),
    [
        ("grün 北", False),
        ("\ud83d\ude00", False),
        ("a\ud83d", True),
        ("\ude00\ud83d", True),
        ("\udcff", True),
    ],
)
def test_half_a_character_is_a_surrogate_without_its_other_half(text, is_half):
    assert has_half_characters(text) == is_half


def test_a_long_text_is_cut_and_says_so():
    assert begin_of("abcd", 4) == begin_and_end("abcd", 4) == "abcd"
    assert begin_of("abcdef", 4) == "abcd... (6 characters)"
    assert begin_and_end("abcdef", 4) == "ab\n...\nef"
    told = begin_and_end(f"It raised.{'.' * MOST_REASON_CHARS}line 3")
    assert told.startswith("It raised.")
    assert told.endswith("line 3")
    assert len(told) == MOST_REASON_CHARS + len("\n...\n") <= MAX_TEXT_CHARS


def test_a_reason_with_a_file_name_that_is_no_utf8_travels():
    reason = begin_and_end("No such file: caf\udce9")
    assert from_fields(Detach.tag, unpack(pack(to_fields(Detach(reason))))) == Detach(
        r"No such file: caf\udce9"
    )
