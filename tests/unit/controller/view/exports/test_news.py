"""What people are told of a run, and how often."""

import contextlib
import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from controller.history.alarms import Alarm
from controller.view.exports.news import (
    AGAIN_S,
    MOST_CHARS,
    PAUSES_S,
    Bell,
    News,
    of_alarm,
    of_end,
    post,
    run_command,
)


@pytest.fixture
def hook():
    """A webhook that answers with what is in `statuses`, and keeps what it was sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            server.got.append((self.headers["content-type"], body))
            self.send_response(server.statuses.pop(0) if server.statuses else 200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.got, server.statuses = [], []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def address(hook):
    return f"http://127.0.0.1:{hook.server_address[1]}/hook"


def test_a_cause_is_told_once_an_hour_and_only_to_who_wants_it():
    bell = Bell(["alarm", "done"])
    alarm = News("alarm", "entropy collapses", "...")
    assert bell.new([alarm], 0.0) == [alarm]
    assert bell.new([alarm], AGAIN_S - 1) == []
    assert bell.new([alarm, News("stuck", "x", "y")], AGAIN_S) == [alarm]


def test_a_webhook_gets_one_object_that_slack_discord_and_programs_read(hook):
    news = of_alarm(Alarm("entropy collapses", "trainer", "it fell to 0.1", "Lower lr."))
    assert post(address(hook), "quickstart", news, pause=lambda s: None) == ""
    ((kind, body),) = hook.got
    told = json.loads(body)
    assert kind == "application/json"
    assert told["text"] == told["content"] == f"quickstart: alarm. {told['message']}"
    assert told["message"] == "entropy collapses (trainer): it fell to 0.1. Lower lr."
    assert (told["run"], told["event"], told["cause"]) == ("quickstart", "alarm", "entropy collapses")


def test_what_is_overloaded_is_tried_again_and_what_refuses_is_not(hook):
    pauses = []
    hook.statuses = [503, 429]
    assert post(address(hook), "run", News("done", "end", "Done."), pause=pauses.append) == ""
    assert len(hook.got) == 3
    assert pauses == sorted(pauses)
    hook.statuses = [404]
    assert "status 404" in post(address(hook), "run", News("done", "end", "Done."), pause=pauses.append)
    assert len(hook.got) == 4


def test_one_that_never_answers_is_given_up_in_a_sentence():
    failure = post("http://127.0.0.1:9/", "run", News("done", "end", "Done."), pause=lambda s: None)
    assert "refused" in failure
    for address in ("hooks.test/SECRET", "http://hooks.test/a SECRET", "http://hooks.test:SECRET/"):
        pauses: list[float] = []
        failure = post(address, "run", News("done", "end", "Done."), pause=pauses.append)
        assert "notify.url is no address of a webhook" in failure
        assert "SECRET" not in failure, "it is told on the console"
        assert pauses == [0.0], "it is not tried again"


def test_what_is_no_http_is_given_up_in_a_sentence_too():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            for _ in range(1 + len(PAUSES_S)):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"220 mail.example ready\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        assert "220 mail" in post(url, "run", News("done", "end", "Done."), pause=lambda s: None)
        thread.join()
    assert post("http://host/a b\x00", "run", News("done", "end", "Done."), pause=lambda s: None)


def test_a_long_text_is_cut_and_one_that_no_program_can_get_is_told():
    long = News("failed", "end", "x" * (MOST_CHARS + 1))
    same = ["/bin/sh", "-c", f'test ${{#3}} = {MOST_CHARS} -a "$2" = failed', "sh"]
    assert run_command(same, "run", long) == ""
    assert "null byte" in run_command(["/bin/true"], "run", News("failed", "end", "a\0b"))


def test_a_title_is_a_header_and_so_without_other_letters(monkeypatch):
    asked = []

    def answer(request, timeout):
        asked.append(request)
        return contextlib.nullcontext()

    monkeypatch.setattr("urllib.request.urlopen", answer)
    assert post("https://ntfy.example/mine", "Läufe \u2192", News("done", "end", "Fertig \u2192")) == ""
    assert asked[0].get_header("Title") == "L?ufe ?: done"
    assert asked[0].data.decode() == "Fertig \u2192"


def test_a_command_gets_the_words_as_arguments_and_no_shell_sees_them(tmp_path):
    script = tmp_path / "tell.sh"
    script.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {tmp_path}/told\n')
    script.chmod(0o700)
    news = News("failed", "end", 'a "quoted" $(touch gone)')
    assert run_command([str(script), "--to", "me"], "run", news) == ""
    assert (tmp_path / "told").read_text() == '--to|me|run|failed|a "quoted" $(touch gone)|'
    assert "exit code 1" in run_command(["/bin/false"], "run", news)
    assert run_command([str(tmp_path / "gone")], "run", news)


def test_a_command_that_leaves_a_program_behind_has_told_it(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.view.exports.news.TIMEOUT_S", 2.0)
    os.mkfifo(tmp_path / "left")
    writer = os.open(tmp_path / "left", os.O_RDWR)
    script = f"exec 3< {tmp_path}/left; cat <&3 &"  # cat has it open before the shell ends
    told = run_command(["/bin/sh", "-c", script], "run", News("done", "end", "Done."))
    os.close(writer)  # cat reads to the end, and ends
    assert told == ""


def test_the_end_is_told_with_its_reason():
    assert of_end({"steps": 3, "time_s": 60, "reward/last_steps": 0.5}).event == "done"
    assert of_end({"steps": 1, "time_s": 60}).text == "Done: 1 train step in 60 s."
    stopped = of_end({"steps": 3, "time_s": 60, "is_success": True, "ending": "stopped"})
    assert stopped == ("done", "end", "Stopped: 3 train steps in 60 s.")
    failed = of_end({"steps": 3, "time_s": 60, "is_success": False, "reason": "The disk is full."})
    assert failed.event == "failed"
    assert "The disk is full." in failed.text
