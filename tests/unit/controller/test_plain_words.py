"""What workers and rows of data write reaches people without a terminal's orders, and readable."""

import io

import pytest
from rich.console import Console as Terminal

from controller.cli.console import PlainConsole, RichConsole
from controller.cli.main import main
from controller.core.commands import Finish, Warn
from controller.host.log_file import ProcessLog
from protocol import messages
from protocol.messages import Message
from protocol.wire.codec import from_fields, to_fields
from tests.support.core_run import Run

ESCAPES = "\x1b]0;pwned\x07\x1b[2J"
AS_SHOWN = r"\x1b]0;pwned\x07\x1b[2J"
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
    taken = ProcessLog(log)
    log.write_bytes(f"10 %\r100 %\n{TRACEBACK}{ESCAPES}\n".encode())
    words = taken.last_words()
    assert words.endswith(r"ValueError: \x1b]0;pwned\x07\x1b[2J")
    assert "100 %\nTraceback" in words


@pytest.mark.parametrize("is_terminal", [False, True])
def test_nor_do_data_sources_and_rows_of_the_user_on_the_console(is_terminal):
    out = io.StringIO()
    console = (
        RichConsole(Terminal(file=out, force_terminal=True, color_system=None, width=200), steps=2)
        if is_terminal
        else PlainConsole(steps=2, write=lambda line: print(line, file=out))
    )
    figures = {"prompts": 2, "pass@1": 0.5, "reward/mean": 0.5}
    sources = {"add": figures, ESCAPES: figures}
    console.progress(0.5, f"prompts: {ESCAPES}")
    console.evaluation({"policy_version": 1, "sources": sources, "failed": 0, "time_s": 1.0, **figures})
    console.warn(f"Row 7 has {ESCAPES}")
    console.close()
    said = out.getvalue()
    assert ESCAPES not in said
    assert "\x07" not in said
    assert said.count(AS_SHOWN) >= 3


def test_nor_does_what_ends_a_command(capsys):
    assert main(["status", f"nowhere{ESCAPES}"]) == 1
    said = capsys.readouterr().err
    assert AS_SHOWN in said
    assert "\x1b" not in said
