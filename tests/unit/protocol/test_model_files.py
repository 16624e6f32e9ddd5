"""The small files of a model reach another machine whole, and nothing else does."""

from pathlib import Path

import pytest

from protocol.errors import RemoteError
from protocol.model_files import MARK, digest_of, keep_model_files, read_model_files


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "modeling.py", "x.index.json"):
        (folder / name).write_text(name)
    return folder


def test_configuration_and_tokenizer_arrive_without_weights_and_code(model: Path) -> None:
    files = read_model_files(model)
    assert sorted(files) == ["config.json", "tokenizer.json"]
    kept = keep_model_files(tuple(files), tuple(files.values()), digest_of(files))
    assert sorted(path.name for path in kept.iterdir()) == ["config.json", "tokenizer.json", MARK]
    assert keep_model_files(tuple(files), tuple(files.values()), digest_of(files)) == kept
    assert len(list(kept.parent.iterdir())) == 1


def test_further_chat_templates_arrive_too_as_a_tokenizer_chooses_by_them(model: Path) -> None:
    templates = model / "additional_chat_templates"
    templates.mkdir()
    for name in ("tool_use.jinja", "run.py", "notes.txt"):
        (templates / name).write_text(name)
    files = read_model_files(model)
    assert sorted(files) == ["additional_chat_templates/tool_use.jinja", "config.json", "tokenizer.json"]
    kept = keep_model_files(tuple(files), tuple(files.values()), digest_of(files))
    assert read_model_files(kept) == files
    (kept / "additional_chat_templates" / "tool_use.jinja").write_text("")
    (kept / "additional_chat_templates" / "other.jinja").write_text("")
    assert keep_model_files(tuple(files), tuple(files.values()), digest_of(files)) == kept
    assert read_model_files(kept) == files


def test_a_folder_without_a_model_or_with_one_too_large_gives_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_model_files(tmp_path) == {}
    assert read_model_files(tmp_path / "none") == {}
    monkeypatch.setattr("protocol.model_files.MAX_BYTES", 5)
    assert read_model_files(model) == {}


@pytest.mark.parametrize("name", [
    "../config.json", "/etc/x.json", ".hidden.json", "run.py", "a/b.json", "additional_chat_templates/x.json",
    "additional_chat_templates/../x.jinja",
])  # fmt: skip
def test_a_name_that_is_no_plain_file_name_is_refused(model: Path, name: str) -> None:
    files = {"config.json": b"{}", name: b"x"}
    with pytest.raises(RemoteError, match="no such name"):
        keep_model_files(tuple(files), tuple(files.values()), digest_of(files))


def test_a_changed_byte_is_refused(model: Path) -> None:
    files = read_model_files(model)
    with pytest.raises(RemoteError, match="checksum"):
        keep_model_files(tuple(files), (b"other", files["tokenizer.json"]), digest_of(files))
    assert not list((model.parent / "cache").rglob("config.json"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["emptied", "cut", "gone", "beside", "unmarked"])
def test_what_was_damaged_in_the_cache_is_made_whole_again(model: Path, name: str, damage: str) -> None:
    files = read_model_files(model)
    kept = keep_model_files(tuple(files), tuple(files.values()), digest_of(files))
    match damage:
        case "gone":
            (kept / name).unlink()
        case "beside":
            (kept / f"other_{name}").write_text("{}")
        case "unmarked":
            (kept / MARK).unlink()
        case _:
            (kept / name).write_text("" if damage == "emptied" else name[:3])
    assert keep_model_files(tuple(files), tuple(files.values()), digest_of(files)) == kept
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == {**files, MARK: b""}
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
