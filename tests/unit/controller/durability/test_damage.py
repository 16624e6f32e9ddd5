"""A run.db that has lost or changed bytes: what is whole is used, what is not is named."""

import random
import shutil
import sqlite3
from array import array

import pytest

from controller.config.models import Config
from controller.durability.recording import Recording
from controller.durability.store import Store
from controller.host.resume import find_past, read_past
from controller.host.run_directory import RunDirectory
from protocol.errors import ConfigError, RunError, StaleFlowError
from protocol.messages import Delta, Generated, Piece
from tests.unit.controller.durability.test_snapshots import Photographed, image, past

BYTES = 16  # flipped at each place


class Damaged:
    """A run that was cut off, with snapshots and payload, of which copies are damaged."""

    def __init__(self, folder):
        self.folder = folder
        self.run = Photographed(folder / "whole.db")
        self.run.to_the_end(max_events=70)
        self.image = image(self.run.core)
        self.groups = sorted(self.run.core.groups_with_payload())
        store = Store(folder / "whole.db")
        with store.transaction():
            for group in self.groups:
                store.put_row(group, b'{"prompt":"what is %d"}' % group)
                tokens = array("i", range(group, group + 500)).tobytes()
                store.put_frames(Generated.of((Delta(group, 0, 1, 0, 500, 0, "stop"),)), (tokens, tokens))
        store.close()
        self.file, self.config = folder / "run.db", self.run.config
        self.payload = self.fetched(folder / "whole.db")
        self.lines = past_of(self, folder / "whole.db").metrics()
        assert len(self.groups) >= 3
        assert len(self.lines) >= 2

    def fetched(self, path):
        """Rows and tokens of all groups. Raises: StaleFlowError."""
        store = Store(path)
        try:
            with store.transaction():
                rows = store.keep_only(self.groups)
            pieces = [
                Piece(kind, group, 0, 1, 500) for group in self.groups for kind in ("tokens", "logprobs")
            ]
            return rows, [bytes(store._payload.piece(piece)) for piece in pieces]
        finally:
            store.close()

    def copy(self):
        for path in self.folder.glob("run.db*"):
            path.unlink()
        shutil.copyfile(self.folder / "whole.db", self.file)

    def execute(self, statement):
        with sqlite3.connect(self.file) as db:
            changed = db.execute(statement).rowcount
        db.close()
        return changed


def past_of(damaged, path):
    shutil.copyfile(path, damaged.file) if path != damaged.file else None
    return past(damaged.run, damaged.folder)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    return Damaged(tmp_path_factory.mktemp("damaged"))


def attempt(damaged):
    """What a controller would find; the words if it is refused."""
    try:
        found = past(damaged.run, damaged.folder)
        rows, pieces = damaged.fetched(damaged.file)
    except StaleFlowError as error:
        return str(error)
    assert image(found.core) == damaged.image
    assert all(line in damaged.lines for line in found.metrics())
    assert (rows, pieces) == damaged.payload
    return found


def flipped_at_random(damaged, count, seed):
    """How many of `count` places ended in words, and how many changed nothing that counts."""
    rng = random.Random(seed)
    size = (damaged.folder / "whole.db").stat().st_size
    whole = 0
    for _ in range(count):
        damaged.copy()
        with damaged.file.open("r+b") as file:
            file.seek(rng.randrange(size - BYTES))
            content = file.read(BYTES)
            file.seek(-BYTES, 1)
            file.write(bytes(byte ^ rng.randrange(1, 256) for byte in content))
        found = attempt(damaged)
        assert "This is a bug" not in str(found)
        whole += not isinstance(found, str)
    return count - whole, whole


def test_wherever_bytes_are_flipped_the_run_is_as_it_was_or_refused_in_words(damaged):
    refused, whole = flipped_at_random(damaged, 40, seed=1)
    assert refused >= 5
    assert whole >= 5


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(10))
def test_wherever_bytes_are_flipped_in_a_thousand_places(damaged, seed):
    flipped_at_random(damaged, 100, seed=100 + seed)


def test_a_token_that_has_changed_is_refused_and_its_place_named(damaged):
    damaged.copy()
    group = damaged.groups[1]
    damaged.execute("UPDATE chunks SET tokens = zeroblob(2000) WHERE number = 2")
    with pytest.raises(RunError) as raised:
        damaged.fetched(damaged.file)
    assert f"the tokens of group {group}, member 0, attempt 1, from 0 on, has changed" in str(raised.value)
    assert "restore the file from a backup, or start over" in str(raised.value)


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE {table} SET {column} = {value}"
        for table, columns in {
            "events": ("now", "event", "checksum"),
            "payload": ("kind", "group_id", "member", "start", "data", "checksum"),
            "chunks": ("places", "places_checksum", "tokens", "logprobs", "checksum"),
            "facts": ("value",),
            "lines": ("line", "checksum"),
            "snapshots": ("now", "release", "digest", "image"),
        }.items()
        for column in columns
        for value in ("'x'", "x'00ff'", "7")
    ],
)
def test_a_value_of_another_kind_is_damage_like_any_other(damaged, statement):
    damaged.copy()
    damaged.execute(statement.replace("UPDATE", "UPDATE OR IGNORE", 1))
    attempt(damaged)


def test_facts_on_a_page_that_was_overwritten_are_damage(damaged):
    damaged.copy()
    with sqlite3.connect(damaged.file) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'facts'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    db.close()
    with damaged.file.open("r+b") as file:
        file.seek(size * (page - 1))
        file.write(b"\xff" * size)
    store = Store(damaged.file)
    with pytest.raises(RunError, match=r"run\.db is damaged: SQLite says"):
        store.facts()
    store.close()


def test_fingerprints_of_another_type_are_damage(damaged):
    damaged.copy()
    damaged.execute("DELETE FROM snapshots")
    damaged.execute("INSERT INTO fingerprints SELECT max(seq) + 1, x'00' FROM events")  # the newest one
    damaged.execute("UPDATE fingerprints SET digests = 7 WHERE first_seq = 1")
    assert "is damaged: a value has another type than was written" in attempt(damaged)


def test_a_record_that_is_gone_is_damage(damaged):
    damaged.copy()
    store = Store(damaged.file)
    damaged.execute("DELETE FROM chunks WHERE number = 1")
    with pytest.raises(RunError, match="is damaged: what record 1 of group"):
        store._payload.piece(Piece("tokens", damaged.groups[0], 0, 1, 500))
    store.close()


def test_a_fault_of_our_own_is_not_told_as_damage_of_the_file(damaged, monkeypatch):
    damaged.copy()
    with monkeypatch.context() as now:
        now.setattr("controller.durability.payload.Held.put", lambda held, stretch, missing: None)
        with pytest.raises(TypeError, match="missing"):
            damaged.fetched(damaged.file)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE payload SET member = 1 WHERE kind = 'row'",
        "UPDATE payload SET start = 500 WHERE kind = 'row'",
        "UPDATE chunks SET number = 99 WHERE number = 1",
        "UPDATE chunks SET places = (SELECT places FROM chunks WHERE number = 2) WHERE number = 1",
        "UPDATE chunks SET tokens = (SELECT tokens FROM chunks WHERE number = 2) WHERE number = 1",
        "UPDATE chunks SET tokens = logprobs, logprobs = substr(tokens, 1, 1996) WHERE number = 1",
    ],
)
def test_a_record_that_has_changed_places_does_not_count(damaged, statement):
    damaged.copy()
    assert damaged.execute(statement)
    with pytest.raises((RunError, StaleFlowError)):
        damaged.fetched(damaged.file)


def test_the_way_on_names_the_newest_checkpoint(damaged):
    damaged.copy()
    for version in (3, 12):
        (damaged.folder / "checkpoints" / f"step_{version}").mkdir(parents=True)
        (damaged.folder / "checkpoints" / f"step_{version}" / ".complete").touch()
    last = damaged.execute("UPDATE events SET event = x'00' WHERE seq = 70")
    assert last == 1
    damaged.execute("DELETE FROM snapshots WHERE seq = 70")
    with pytest.raises(RunError) as raised:
        past(damaged.run, damaged.folder)
    assert "Event 70 of " in str(raised.value)
    assert "it has changed since it was written" in str(raised.value)
    shutil.rmtree(damaged.folder / "checkpoints")
    assert f"run.resume={damaged.folder}/checkpoints/step_12 run.name=ANOTHER." in str(raised.value)


def test_a_damaged_snapshot_is_said_and_the_older_one_used(damaged):
    damaged.copy()
    newest, older = damaged.run.pictures[-1], damaged.run.pictures[-2]
    damaged.execute(f"UPDATE snapshots SET now = now + 1 WHERE seq = {newest}")
    found = attempt(damaged)
    assert found.replayed == newest - older
    (note,) = found.notes
    assert f"The snapshot after event {newest} of " in note
    assert "is damaged and not used" in note


def test_a_damaged_line_is_said_and_left_out(damaged):
    damaged.copy()
    damaged.execute("UPDATE lines SET line = replace(line, '0', '7') WHERE step = 1")
    found = attempt(damaged)
    assert found.metrics() == damaged.lines[1:]
    assert "The line of step 1 in " in found.notes[0]


@pytest.mark.parametrize("content", ["empty", "foreign"])
def test_a_run_that_has_trained_and_lost_its_history_is_not_begun_anew(tmp_path, content):
    if content == "empty":
        (tmp_path / "run.db").touch()
    else:
        Store(tmp_path / "run.db").close()
    assert read_past(tmp_path, Config()) is None  # killed while it began
    (tmp_path / "evaluations.jsonl").write_text('{"policy_version": 0}\n')
    with pytest.raises(ConfigError, match=r"has begun: evaluations\.jsonl has lines\. It was emptied"):
        read_past(tmp_path, Config())
    (tmp_path / "evaluations.jsonl").unlink()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "checkpoints" / "step_7").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step_7" / ".complete").touch()
    with pytest.raises(ConfigError) as raised:
        read_past(tmp_path, Config())
    assert "holds no history, though the run has begun: metrics.jsonl has lines and " in str(raised.value)
    assert f"run.resume={tmp_path}/checkpoints/step_7 run.name=ANOTHER." in str(raised.value)
    assert "To set all of it aside and start over under its name: run.resume=never" in str(raised.value)


def test_a_database_of_another_program_is_named(tmp_path):
    with sqlite3.connect(tmp_path / "run.db") as db:
        db.execute("CREATE TABLE bookmarks (url)")
    db.close()
    with pytest.raises(
        RunError, match="written by another release of StaleFlow, which can read it, or by an"
    ):
        read_past(tmp_path, Config())


def test_a_file_that_cannot_be_opened_is_said_in_words(tmp_path):
    (tmp_path / "run.db").mkdir()
    with pytest.raises(StaleFlowError, match=r"run\.db"):
        Store(tmp_path / "run.db")
    with pytest.raises(StaleFlowError, match=r"run\.db"):
        read_past(tmp_path, Config())
    with pytest.raises(RunError, match="There is no run"):
        Recording(tmp_path)


async def warnings_of_a_new_run(settings: Config) -> list[str]:
    told: list[str] = []
    directory = RunDirectory(settings)
    assert await find_past(directory, settings, on_warning=told.append) is None
    directory.close()
    return told


@pytest.mark.parametrize("resume", ["auto", "never"])
async def test_a_folder_without_run_db_is_set_aside_and_that_is_said(tmp_path, resume):
    settings = Config.model_validate({"run": {"dir": str(tmp_path), "name": "run", "resume": resume}})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    told = await warnings_of_a_new_run(settings)
    assert len(told) == (resume == "auto")  # never: that is what was asked for
    assert all(
        f"a run without run.db, so nothing could go on with it: it is set aside at {tmp_path}/run.1" in t
        for t in told
    )


async def test_a_run_with_run_db_that_durability_off_sets_aside_is_called_so(tmp_path):
    run = {"dir": str(tmp_path), "name": "run", "durability": "off"}
    settings = Config.model_validate({"run": run, "samples": {"groups": 0}})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.db").write_text("whole")
    told = await warnings_of_a_new_run(settings)
    (text,) = told
    assert "without run.db" not in text
    assert "`run.durability: off`" in text
    assert f"set run.resume={tmp_path}/run.1" in text
    assert (tmp_path / "run.1" / "run.db").read_text() == "whole"


def test_a_damaged_name_that_is_no_text_is_damage(damaged):
    damaged.copy()
    content = damaged.file.read_bytes()
    assert b"tablefactsfacts" in content
    damaged.file.write_bytes(content.replace(b"tablefactsfacts", b"tablefa\xa1tsfacts"))
    assert "is damaged: SQLite says 'malformed database schema" in attempt(damaged)
