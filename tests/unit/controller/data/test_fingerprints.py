"""Data that is not what the run began with is refused; the same data goes on at the very row."""

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.config.models import Config
from controller.core.state.source_mixture import Mixture
from controller.data.fingerprints import WHOLE_BYTES, of_file
from controller.data.sources import Sources
from protocol.errors import ConfigError
from strategies.schedules import SCHEDULES


def jsonl(path: Path, count: int, word: str = "p") -> Path:
    path.write_text("".join(f'{{"prompt":"{word}{n:04}"}}\n' for n in range(count)))
    return path


def separated(path: Path, count: int) -> Path:
    path.write_text("text,level\n" + "".join(f"t{n},{n % 3}\n" for n in range(count)))
    return path


def config(*paths: Path, **data: object) -> Config:
    if len(paths) == 1:
        return Config.model_validate({"data": {"path": str(paths[0]), **data}})
    return Config.model_validate({"data": {"sources": [{"path": str(path)} for path in paths], **data}})


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "emptied": (
        lambda path: path.write_text(""),
        r"no rows.* run began it had 50 rows in .* 950 bytes",
    ),
    "gone": (lambda path: path.unlink(), r"no such file.* When the run began it had 50 rows"),
    "shortened": (lambda path: jsonl(path, 49), r"was shortened: 950 bytes then, 931 now"),
    "grown": (lambda path: jsonl(path, 51), r"has grown: 950 bytes then, 969 now"),
    "changed": (lambda path: jsonl(path, 50, "q"), r"has other content in the same 950 bytes"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_file_that_changed_since_the_run_began_is_refused_with_what_changed(tmp_path, change, is_mixed):
    path = jsonl(tmp_path / "rows.jsonl", 50)
    paths = [jsonl(tmp_path / "other.jsonl", 9), path] if is_mixed else [path]
    known = Sources(config(*paths)).fingerprints
    Sources(config(*paths), known=known)
    do, words = CHANGES[change]
    do(path)
    with pytest.raises(ConfigError, match=words) as caught:
        Sources(config(*paths), known=known)
    assert "run.resume=never" in str(caught.value)
    assert ("data.sources.1 (rows)" in str(caught.value)) is is_mixed


def test_the_only_file_of_a_folder_may_have_another_name_but_no_other_content(tmp_path):
    path = jsonl(tmp_path / "part-0.jsonl", 50)
    known = Sources(config(tmp_path)).fingerprints
    path = path.rename(tmp_path / "part-1.jsonl")
    Sources(config(tmp_path), known=known)
    jsonl(path, 50, "q")
    with pytest.raises(ConfigError, match=r"part-1\.jsonl has other content in the same 950 bytes"):
        Sources(config(tmp_path), known=known)


def test_a_folder_of_files_may_lie_elsewhere_but_have_no_other_names_or_content(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in "ab":
        jsonl(folder / f"{name}.jsonl", 50, name)
    known = Sources(config(folder)).fingerprints
    folder = folder.rename(tmp_path / "moved")
    Sources(config(folder), known=known)
    jsonl(folder / "b.jsonl", 50, "q")
    with pytest.raises(ConfigError, match=r"moved/b\.jsonl has other content in the same 950 bytes"):
        Sources(config(folder), known=known)
    (folder / "b.jsonl").rename(folder / "c.jsonl")
    with pytest.raises(
        ConfigError, match=r"rows/a\.jsonl is gone and .*moved/a\.jsonl is new, of 2 files then"
    ):
        Sources(config(folder), known=known)


def test_a_large_file_is_known_by_its_ends_and_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.data.fingerprints.WHOLE_BYTES", 1000)
    monkeypatch.setattr("controller.data.fingerprints.BLOCK_BYTES", 16)
    path = jsonl(tmp_path / "rows.jsonl", 500)
    before = of_file(str(path))
    os.utime(path, (1, 1))
    assert of_file(str(path)) == before
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    assert of_file(str(path)) != before
    assert WHOLE_BYTES > 1 << 20


def test_a_column_that_one_source_lacks_is_named_with_the_source(tmp_path):
    paths = jsonl(tmp_path / "a.jsonl", 3), separated(tmp_path / "b.csv", 3)
    sources = Sources(config(*paths))
    words = r"data\.sources\.1 \(b\), called `data` here: .*b\.csv, line \d has columns"
    with pytest.raises(ConfigError, match=words):
        sources.read(2, (0, 1))


def test_a_source_that_has_changed_is_named_without_words_about_keys(tmp_path):
    paths = jsonl(tmp_path / "a.jsonl", 3), separated(tmp_path / "b.csv", 3)
    known = Sources(config(*paths)).fingerprints
    paths[1].write_text(paths[1].read_text() * 2)
    with pytest.raises(ConfigError, match=r"^data\.sources\.1 \(b\): the data of the run has changed"):
        Sources(config(*paths), known=known)


@pytest.mark.parametrize("seed", range(6))
def test_rows_after_any_number_of_kills_are_those_of_a_run_without(tmp_path, seed):
    paths = jsonl(tmp_path / "a.jsonl", 130), separated(tmp_path / "b.csv", 200)
    tree = {
        "run": {"seed": seed},
        "data": {
            "sources": [
                {"path": str(paths[0]), "min_chars": 2},
                {"path": str(paths[1]), "prompt": "{text}", "where": {"level": ["0", "2"]}, "weight": 2.5},
            ],
        },
    }  # fmt: skip
    settings, chance = Config.model_validate(tree), random.Random(seed)

    def mixture() -> Mixture:
        return Mixture(settings.data, seed)

    def some(sources: Sources, state: Mixture, count: int) -> list[bytes]:
        rows, came = sources.read(count, state.choose(count, 0, SCHEDULES["constant"]))
        state.on_read(len(rows), came)
        return rows

    straight = some(Sources(settings), mixture(), 1000)
    state, sources, found, cursors = mixture(), Sources(settings), [], None
    places: dict[tuple[int, int], bytes] = {}
    while len(found) < 1000:
        count = min(chance.randint(1, 90), 1000 - len(found))
        rows, came = sources.read(count, state.choose(count, 0, SCHEDULES["constant"]))
        places |= dict(zip(state.on_read(len(rows), came), rows, strict=True))
        found += rows
        if chance.random() < 0.5:
            cursors = sources.cursors
        if chance.random() < 0.4:  # killed; the cursors may be of an earlier read
            cursors = None if chance.random() < 0.2 else cursors
            known = {place: row for place, row in places.items() if place[1] >= state.read[place[0]] - 20}
            sources = Sources(settings, known=sources.fingerprints)
            sources.take_up(state.read, known, cursors)
    assert found == straight
    assert {json.loads(row)["source"] for row in found} == {"a", "b"}


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_source_that_has_ended_is_not_read_again_after_a_kill(tmp_path, epochs):
    paths = jsonl(tmp_path / "a.jsonl", 5, "a"), jsonl(tmp_path / "b.jsonl", 90, "b")
    settings = config(*paths, epochs=epochs)
    mixture, sources, found = Mixture(settings.data, 0), Sources(settings), []
    while not sources.is_end:
        rows, came = sources.read(8, mixture.choose(8, 0, SCHEDULES["constant"]))
        places = mixture.on_read(len(rows), came)
        found += rows
        if not sources.is_end:  # else the run asks for no more
            cursors, sources = sources.cursors, Sources(settings)
            sources.take_up(mixture.read, dict(zip(places, rows, strict=True)), cursors)
    assert Counter(found) == dict.fromkeys(set(found), epochs)
    assert len(found) == 95 * epochs


def test_cursors_ahead_of_the_journal_are_not_used(tmp_path):
    settings = config(jsonl(tmp_path / "rows.jsonl", 50))
    ahead = Sources(settings)
    rows, _ = ahead.read(30)
    again = Sources(settings)
    again.take_up([20], {(0, 19): rows[19]}, ahead.cursors)
    assert again.read(10)[0] == rows[20:]


def test_cursors_that_have_changed_on_the_disk_are_not_used(tmp_path):
    settings = config(jsonl(tmp_path / "rows.jsonl", 50))
    before = Sources(settings)
    rows, _ = before.read(30)
    whole, following = before.cursors, before.read(10)[0]
    for place, character in enumerate(whole):
        for bit in (1, 2, 4, 16):
            changed = f"{whole[:place]}{chr(ord(character) ^ bit)}{whole[place + 1 :]}"
            again = Sources(settings)
            again.take_up([30], {(0, 29): rows[29]}, changed)
            assert again.read(10)[0] == following, changed


def test_cursors_of_an_older_release_without_a_checksum_are_used(tmp_path):
    settings = config(jsonl(tmp_path / "rows.jsonl", 50))
    again = Sources(settings)
    again.take_up([30], {}, "[[30, 0, 30]]")
    assert json.loads(again.cursors)[0] == [30, 0, 30]


def test_fingerprints_that_have_changed_on_the_disk_are_told_in_words(tmp_path):
    settings = config(jsonl(tmp_path / "rows.jsonl", 50))
    known = Sources(settings).fingerprints
    with pytest.raises(ConfigError, match="says of the run's data has changed since it was written"):
        Sources(settings, known=known.replace(",", "<", 1))


def test_a_source_of_which_a_filter_leaves_nothing_is_refused(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", 50)
    with pytest.raises(ConfigError, match=r"None of 50 rows of .* is left by its `where`"):
        Sources(config(path, max_chars=2)).read(1)
