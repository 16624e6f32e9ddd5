"""What a person reads who attaches a worker, or asks one to leave, by hand."""

import argparse
import asyncio
import json
import os
from pathlib import Path

import pytest

from controller.cli.main import main
from protocol.errors import NoAnswer
from protocol.messages import Attach
from protocol.wire.endpoints import find_endpoint
from workers.host import serve as module
from workers.host.overrides import Overrides
from workers.host.serve import serve
from workers.host.stop import Stop


def over(tmp_path: Path, reason: str = "All 10 train steps are made.") -> Path:
    (tmp_path / "summary.json").write_text(json.dumps({"is_success": True, "reason": reason}))
    return tmp_path


async def test_attaching_to_a_run_that_is_over_is_one_sentence_and_exit_code_2(tmp_path, capsys):
    address = str(over(tmp_path))
    options = argparse.Namespace(
        address=address, role="rollout", name=None, overrides=[], key=None, parent=None
    )
    assert await serve(options) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"The run in {tmp_path} is over: All 10 train steps are made. Nobody can join")
    assert len(said.err.splitlines()) == 1, "no line of a log"


async def test_one_whom_nobody_answers_at_an_endpoint_says_by_its_exit_code_that_it_may_try_again(
    capsys,
):
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as nobody:
        address = f"tcp://127.0.0.1:{nobody.sockets[0].getsockname()[1]}"
        options = argparse.Namespace(
            address=address, role="rollout", name=None, overrides=[], key=None, parent=None
        )
        assert await serve(options) == NoAnswer.EXIT_CODE == os.EX_TEMPFAIL
    assert capsys.readouterr().err == (
        f"Attaching at {address} failed: the connection is closed during the handshake. Either a tunnel or "
        "proxy there reaches no controller, because none runs at its far end, or the controller asks for a "
        "key (--key FILE), or is none of ours.\n"
    )


async def test_one_whose_controller_does_not_come_back_says_so_and_how_long_it_has_looked(monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    options = argparse.Namespace(address="tcp://127.0.0.1:1", key=None, parent=None)
    host = module._Host(options, Attach("reward", "r0", 1, "here"), Stop(), Overrides("reward", []))
    with pytest.raises(NoAnswer) as said:
        await host.find_again(0.1)
    assert str(said.value).startswith(
        "No controller came back at tcp://127.0.0.1:1 within 0.1 s (controller.reattach_s), so this "
        "worker ends"
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (os.fsdecode(b"caf\xe9"), r"'caf\\udce9'"),
        ("a\x1b[31m", r"'a\\x1b[31m'"),
        (201 * "n", f"'{201 * 'n'}'"),
    ],
)
async def test_a_name_that_cannot_be_sent_is_refused_before_anybody_is_asked(capsys, name, shown):
    options = argparse.Namespace(
        address="tcp://127.0.0.1:9", role="rollout", name=name, overrides=[], key=None, parent=None
    )
    assert await serve(options) == 2
    assert capsys.readouterr().err == (
        f"--name is {shown}; expected one line of at most 200 characters, in UTF-8 and without control "
        "characters.\n"
    )


async def test_a_port_that_does_not_exist_is_refused_at_once(capsys):
    options = argparse.Namespace(
        address="tcp://127.0.0.1:99999", role="rollout", name=None, overrides=[], key=None, parent=None
    )
    assert await serve(options) == 2
    said = capsys.readouterr().err
    assert said == "'tcp://127.0.0.1:99999' has the port 99999; expected one from 1 to 65535.\n"


def test_so_is_draining_a_worker_of_it(tmp_path, capsys):
    assert main(["drain", str(over(tmp_path, "interrupted by the operator")), "rollout-0"]) == 2
    assert "is over: interrupted by the operator. Nobody" in capsys.readouterr().err


@pytest.mark.parametrize("summary", ["", "{}", "[]", '{"reason": ""}'])
def test_a_summary_that_says_nothing_is_none(tmp_path, summary):
    (tmp_path / "summary.json").write_text(summary)
    with pytest.raises(NoAnswer, match="neither an endpoint nor a run directory"):
        find_endpoint(str(tmp_path))
