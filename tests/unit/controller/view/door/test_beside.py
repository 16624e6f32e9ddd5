"""The view that a run starts: a link at once, a process that waits for a page, and nothing left behind."""

import asyncio
import contextlib
import json
import os
import socket

import pytest

from controller.config.models import ViewSettings
from controller.view.door import beside
from controller.view.door.beside import ViewLink, view_beside
from tests.support.shown_run import recorded

LIMIT_S = 60
NOBODY = 65534


def run_in(folder):
    run = folder / "run"
    (run / "logs").mkdir(parents=True)
    return run


def of_view(link):
    return (link.address, link.token)


async def asked(link, path):
    """Status line and body of what the view answers."""
    host, _, port = link.address.removeprefix("http://").rstrip("/").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {link.token}\r\n"
        "Connection: close\r\n\r\n"
    )
    writer.write(request.encode())
    async with asyncio.timeout(LIMIT_S):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], body


async def test_a_page_wakes_the_process_that_waits_and_the_end_of_the_run_ends_it(tmp_path, monkeypatch):
    run = recorded(tmp_path / "run")
    (run / "logs").mkdir(exist_ok=True)
    started = []
    real = asyncio.create_subprocess_exec

    async def starting(*words, **more):
        started.append(await real(*words, **more))
        return started[-1]

    monkeypatch.setattr(beside.asyncio, "create_subprocess_exec", starting)
    warned = []
    async with view_beside(run, ViewSettings(), on_warning=warned.append) as link:
        assert (run / "view.token").read_text() == link.token
        (process,) = started
        status, body = await asked(link, "/api/runs")
        assert status == b"HTTP/1.1 200 OK", body
        assert json.loads(body)["runs"][0]["last"] > 0
        assert process.returncode is None
    assert process.returncode == 0
    assert not warned
    assert not (run / "view.token").exists()


async def test_the_next_life_of_a_run_has_the_same_link_and_a_copy_has_no_key_to_it(tmp_path):
    run, warned = run_in(tmp_path), []
    async with view_beside(run, ViewSettings(), on_warning=warned.append) as first:
        pass
    async with view_beside(run, ViewSettings(), on_warning=warned.append) as second:
        pass
    assert of_view(first) == of_view(second)
    memory = tmp_path / ".run.view"
    assert memory.stat().st_mode & 0o777 == 0o600
    assert not [path for path in run.rglob("*") if path.is_file() and first.token in path.read_text()]
    memory.write_text('{"token": 7}')
    async with view_beside(run, ViewSettings(), on_warning=warned.append) as third:
        assert third.token != first.token
    assert not warned


@pytest.mark.parametrize("planted", ["readable", "link", "pipe", "of another user"])
async def test_a_token_that_somebody_else_knows_or_chose_is_not_taken(tmp_path, planted):
    run, warned = run_in(tmp_path), []
    memory, victim = tmp_path / ".run.view", tmp_path / "thesis.tex"
    known = json.dumps({"token": "A" * 43, "port": 8499})
    match planted:
        case "readable":
            memory.write_text(known)
            memory.chmod(0o644)
        case "link":
            victim.write_text(known)
            victim.chmod(0o600)
            memory.symlink_to(victim)
        case "pipe":
            os.mkfifo(memory, 0o600)
        case _:
            if os.geteuid() != 0:
                pytest.skip("needs root, to make a file of another user's")
            memory.write_text(known)
            memory.chmod(0o600)
            os.chown(memory, NOBODY, NOBODY)
    async with asyncio.timeout(LIMIT_S), view_beside(run, ViewSettings(), on_warning=warned.append) as link:
        assert link.token != "A" * 43
        if planted == "link":
            assert victim.read_text() == known
        if planted == "of another user":
            assert memory.read_text() == known, "he can read what is in it"
        if planted == "readable":
            assert json.loads(memory.read_text())["token"] == link.token
            assert memory.stat().st_mode & 0o777 == 0o600
    assert not warned


async def test_on_a_full_disk_the_link_itself_leads_to_the_view(tmp_path, monkeypatch):
    run = recorded(tmp_path / "run")
    (run / "logs").mkdir(exist_ok=True)
    monkeypatch.setattr(beside, "left_token", lambda run, token, *, is_own: contextlib.nullcontext())
    warned = []
    async with view_beside(run, ViewSettings(), on_warning=warned.append) as link:
        assert not (run / "view.token").exists()
        assert f"token={link.token}" in link.in_words(shows_token=False)
        status, body = await asked(link, "/api/runs")
        assert status == b"HTTP/1.1 200 OK", body
    assert not warned


async def test_a_port_that_is_taken_is_one_sentence_and_the_run_goes_on(tmp_path):
    run, warned = run_in(tmp_path), []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with view_beside(run, ViewSettings(port=port), on_warning=warned.append) as link:
            assert link is None
    assert len(warned) == 1
    assert f"Port {port} of 127.0.0.1 cannot be had" in warned[0]
    assert "view.port" in warned[0]


async def test_the_port_of_last_time_is_given_up_if_somebody_has_it_with_the_token_that_he_may_know(tmp_path):
    run, warned = run_in(tmp_path), []
    async with view_beside(run, ViewSettings(), on_warning=warned.append) as first:
        pass
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(first.address.rstrip("/").rpartition(":")[2])))
        taken.listen()
        async with view_beside(run, ViewSettings(), on_warning=warned.append) as second:
            assert second.address != first.address
            assert second.token != first.token, "open pages have shown it to whoever listens there"
    assert not warned


async def test_a_view_that_dies_is_told_once_and_nothing_else_ends(tmp_path, monkeypatch):
    told = asyncio.Event()
    warned = []

    def warn(text):
        warned.append(text)
        told.set()

    monkeypatch.setattr(beside, "waiting_command", lambda *_: ["/bin/sh", "-c", "exit 3"])
    run = run_in(tmp_path)
    async with asyncio.timeout(LIMIT_S), view_beside(run, ViewSettings(), on_warning=warn) as link:
        await told.wait()
        with pytest.raises(ConnectionRefusedError):  # and no browser waits for what never comes
            await asked(link, "/")
    assert len(warned) == 1
    assert "exit code 3" in warned[0]


async def test_a_process_that_cannot_be_started_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(beside, "waiting_command", lambda *_: ["/nowhere/python"])
    warned = []
    before = set(os.listdir("/proc/self/fd"))
    async with view_beside(run_in(tmp_path), ViewSettings(), on_warning=warned.append) as link:
        assert link is None
    assert len(warned) == 1
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_a_log_gets_the_name_of_the_tokens_file_and_a_terminal_the_token(tmp_path):
    link = ViewLink("http://127.0.0.1:8470/", "secret", tmp_path / "view.token")
    assert link.in_words(shows_token=True) == "View: http://127.0.0.1:8470/?token=secret"
    assert "secret" not in link.in_words(shows_token=False)
    assert str(tmp_path / "view.token") in link.in_words(shows_token=False)
    assert "secret" in ViewLink("http://127.0.0.1:8470/", "secret", None).in_words(shows_token=False)
