"""What has happened to a run that is shown: each accident is one sentence where it matters, and no page else
goes along."""

import io
import json
import os
import random
import shutil
import sqlite3

import pytest

from controller.cli.main import main
from controller.history.sample_text import SampleReader
from controller.view.shown_run import ShownRun
from controller.view.site import Site
from tests.support.shown_run import Browser, recorded

ONE = "/api/runs/0"
OF_THE_JOURNAL = ("moment", "now", "ledger", "why", "timeline", "groups/1", "orders", "samples")
BLOCK = 512


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("accidents") / "run")


@pytest.fixture
def run(whole, tmp_path):
    """A copy, for something to happen to it."""
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def sentence(found):
    """What an answer says went wrong, which is one line for a person."""
    text = found["error"]
    assert text.strip()
    assert "Traceback" not in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("kept", [0, 1, 100, 4096, 20_000, 0.5, 0.9])
def test_a_truncated_journal_is_said_on_every_page_that_needs_it(run, kept, capsys):
    file = run / "run.db"
    data = file.read_bytes()
    file.write_bytes(data[: kept if isinstance(kept, int) else int(kept * len(data))])
    browser = Browser(run)
    told = [browser.json(f"{ONE}/{page}") for page in OF_THE_JOURNAL]
    assert any(status == 404 for status, _ in told)
    for status, found in told:
        assert status == 200 or str(file) in sentence(found)
    assert browser.json(f"{ONE}/metrics")[0] == 200, "what lies beside it is whole"
    assert browser.json("/api/runs")[0] == 200


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_journal_breaks_no_page(run, seed):
    dice, file = random.Random(seed), run / "run.db"
    data = bytearray(file.read_bytes())
    for _ in range(dice.choice((1, 4, 40))):
        begin = dice.randrange(len(data) - BLOCK)
        data[begin : begin + BLOCK] = dice.choice((bytes(BLOCK), dice.randbytes(BLOCK)))
    file.write_bytes(data)
    browser = Browser(run)
    for page in ("/api/runs", *(f"{ONE}/{page}" for page in (*OF_THE_JOURNAL, "now?event=9", "metrics"))):
        status, found = browser.json(page)
        assert status == 200 or (status == 404 and sentence(found)), page


def test_a_run_of_a_release_that_is_not_here_is_named_and_the_others_are_shown(run, whole, capsys):
    db = sqlite3.connect(run / "run.db")
    with db:
        db.execute("""UPDATE facts SET value = '{"core": 0}' WHERE name = 'release'""")
        db.execute("""UPDATE facts SET value = '{"staleness": {"old_key": 1}}' WHERE name = 'config'""")
    db.close()
    browser = Browser(run)
    browser.app = Site([ShownRun(run), ShownRun(whole)], browser.access, order=None).app()
    _, found = browser.json("/api/runs")
    old, other = found["runs"]
    assert "does not fit this release: staleness.old_key" in old["trouble"]
    assert "The run was made by another release" in old["trouble"]
    assert "trouble" not in other
    status, now = browser.json(f"{ONE}/now")
    assert status == 404
    assert "another release" in sentence(now)
    assert browser.json(f"{ONE}/metrics")[0] == 200
    assert browser.json("/api/runs/1/now")[0] == 200
    assert main(["view", str(run), "--export", str(run / "x.html")]) == 1
    assert "does not fit this release" in capsys.readouterr().err


def test_a_folder_that_the_user_may_not_enter_is_said_and_the_others_are_shown(
    run, whole, capsys, monkeypatch
):
    def closed(do):
        def doing(path, *more, **how):
            if str(path).startswith(f"{run}/"):
                raise PermissionError(13, "Permission denied", str(path))
            return do(path, *more, **how)

        return doing

    async def serve(app, bound, on_ready):
        bound.close()
        on_ready()

    monkeypatch.setattr(os, "stat", closed(os.stat))
    monkeypatch.setattr(io, "open", closed(io.open))
    monkeypatch.setattr(os, "open", closed(os.open))
    monkeypatch.setattr("controller.view.door.server.serve", serve)
    browser = Browser(run, whole)
    _, found = browser.json("/api/runs")
    shut, other = found["runs"]
    assert f"{run} cannot be read: Permission denied." in shut["trouble"]
    assert shut["state"] == "gone"
    assert "trouble" not in other
    for page in (*OF_THE_JOURNAL, "metrics"):
        status, found = browser.json(f"{ONE}/{page}")
        assert status == 404, page
        assert "Permission denied" in sentence(found)
    assert browser.ask("/metrics")[0] == 200
    assert browser.json("/api/runs/1/now")[0] == 200
    assert main(["view", str(whole), str(run)]) == 0
    said = capsys.readouterr()
    assert f"One run is shown as unreadable. {run} cannot be read: Permission denied." in said.err
    assert said.out.startswith("View: http://127.0.0.1:")


def lay_tokenizer(run, text=None):
    """The run's tokenizer, or a file with this text in its place."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    folder = run / json.loads(facts_of(run)["config"])["model"]["path"]
    folder.mkdir(parents=True, exist_ok=True)
    if text is None:
        Tokenizer(WordLevel({"yes": 0, "no": 1}, unk_token="no")).save(str(folder / "tokenizer.json"))
    else:
        (folder / "tokenizer.json").write_text(text)
    return folder / "tokenizer.json"


def facts_of(run):
    db = sqlite3.connect(run / "run.db")
    found = dict(db.execute("SELECT name, value FROM facts"))
    db.close()
    return found


@pytest.mark.parametrize("harm", ["gone", "half", "folder"])
def test_without_its_tokenizer_what_a_model_said_is_told_in_numbers(run, harm):
    file, browser = lay_tokenizer(run), Browser(run)
    assert browser.json(f"{ONE}/samples")[1]["has_text"]
    if harm == "half":
        lay_tokenizer(run, '{"version": "1.0", "model": {"ty')
    else:
        file.unlink()
        file.mkdir() if harm == "folder" else None
    status, found = browser.json(f"{ONE}/samples")
    assert (status, found["has_text"]) == (200, False)
    with ShownRun(run).replayed() as replayed:
        reader = SampleReader(replayed.recording)
    assert reader._decode is None
    assert browser.json(f"{ONE}/now")[0] == 200
    shutil.rmtree(file) if harm == "folder" else file.unlink(missing_ok=True)
    lay_tokenizer(run)
    assert browser.json(f"{ONE}/samples")[1]["has_text"], "it is back"


def test_a_run_directory_that_goes_away_while_it_is_shown_is_said(run):
    browser = Browser(run)
    assert browser.json(f"{ONE}/now")[0] == 200
    (run / "summary.json").unlink()
    shutil.rmtree(run)
    status, found = Browser(run).json(f"{ONE}/now")
    assert status == 404
    assert "There is no run" in sentence(found)


def test_the_view_of_a_damaged_run_alone_does_not_begin(run, capsys):
    (run / "run.db").write_bytes(b"no database" * 500)
    assert main(["view", str(run)]) == 1
    assert "run.db" in capsys.readouterr().err
