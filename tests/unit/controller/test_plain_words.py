"""What workers write reaches people without a terminal's orders, and readable."""

from test_core import Run

from controller.core.commands import Finish, Warn
from controller.host.supervisor import _Log
from protocol import messages
from protocol.messages import Message
from protocol.wire.codec import from_fields, to_fields

ESCAPES = "\x1b]0;pwned\x07\x1b[2J"
TRACEBACK = 'Traceback (most recent call last):\n  File "reward.py", line 3\nValueError: '


def over_the_wire(message: Message) -> Message:
    return from_fields(message.tag, to_fields(message))


def texts(run: Run) -> list[str]:
    return [c.text if isinstance(c, Warn) else c.reason for c in run.commands if isinstance(c, Warn | Finish)]


def scoring(run: Run) -> messages.Score:
    for route in run.start_groups(1):
        run.generate(route, 4)
    return run.sent(messages.Score)[0]


def test_an_exception_of_a_reward_that_quotes_a_prompt_moves_no_cursor_and_keeps_its_lines():
    run = Run(reward={"max_consecutive_failures": 1})
    score = scoring(run)
    failed = messages.ScoreFailed(score.group, score.attempt, f"{TRACEBACK}{ESCAPES}", f"{{{ESCAPES}}}")
    run.say("reward-0", over_the_wire(failed))
    told = texts(run)
    assert any(TRACEBACK in text for text in told)
    assert any("at reward-0: " in text for text in told)
    assert not any("\x1b" in text or "\x07" in text for text in told)
    assert "\x1b" not in str(run.core.summary()["reason"])


def test_neither_does_what_a_worker_says_when_it_leaves_or_fails():
    for word in (messages.Detach(ESCAPES), messages.WorkerFailed(ESCAPES)):
        run = Run()
        run.attach("guest", "rollout")
        run.say("guest", over_the_wire(word))
        assert texts(run)
        assert not any("\x1b" in text for text in texts(run))


def test_nor_the_end_of_a_workers_log(tmp_path):
    log = tmp_path / "trainer.log"
    taken = _Log(log)
    log.write_bytes(f"10 %\r100 %\n{TRACEBACK}{ESCAPES}\n".encode())
    words = taken.last_words()
    assert words.endswith(r"ValueError: \x1b]0;pwned\x07\x1b[2J")
    assert "100 %\nTraceback" in words
