"""Saved data sets and data sets of the Hugging Face Hub, memory-mapped by the package `datasets`."""

import json
from pathlib import Path
from typing import Any

from controller.data import fingerprints
from controller.data.tables import Found, Rows
from protocol.errors import ConfigError
from protocol.files import exists


class SavedDataset(Rows):
    """A `datasets.Dataset` as a table."""

    is_padded = True

    def __init__(self, dataset: Any, path: str) -> None:
        self._dataset, self._path = dataset, path

    def __len__(self) -> int:
        return len(self._dataset)

    def row(self, index: int) -> Found:
        """The place of the row in words, and the row."""
        return f"{self._path}, row {index}", self._dataset[index]

    def fingerprint(self) -> fingerprints.Fingerprint:
        """The fingerprint, from evenly spaced rows."""
        return fingerprints.of_rows(self._dataset.__getitem__, len(self))


def splits_of(path: str) -> list[str]:
    """Names of the splits, at least one, of a folder with a `dataset_dict.json`. Raises: ConfigError."""
    parts = Path(path) / "dataset_dict.json"
    try:
        if splits := [str(name) for name in json.loads(parts.read_text())["splits"]]:
            return splits
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise ConfigError(
        f"data.path {path!r} holds a dataset_dict.json that names no splits, so that nothing can be read "
        "there. Save the data set again, or name the folder of one split."
    )


def open_saved(path: str, split: str) -> SavedDataset:
    """The data set that `save_to_disk` wrote into a folder. Raises: ConfigError."""
    datasets = _package(f"data.path {path!r} is a folder, and reading a saved dataset")
    parts = Path(path) / "dataset_dict.json"
    if exists(parts):
        splits = splits_of(path)
        if split not in splits:
            which = f"none named {split!r}" if split else "several splits"
            raise ConfigError(
                f"data.path {path!r} holds {which}: it has {', '.join(splits)}; choose one: "
                f"{path.rstrip('/')}/{splits[0]}, by `path` or by `split`."
            )
        path = f"{path.rstrip('/')}/{split}"
    elif split:
        raise ConfigError(
            f"data.split is {split!r}, and data.path {path!r} holds one data set without splits; leave "
            "split out."
        )
    try:
        return SavedDataset(datasets.load_from_disk(path), path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"data.path {path!r} is not a folder that datasets.save_to_disk wrote: {error}. Give such a "
            "folder, or a JSONL file."
        ) from error


def open_from_hub(name: str, subset: str, split: str) -> SavedDataset:
    """A data set of the Hub, from the local cache if it is there. Raises: ConfigError."""
    datasets = _package(f"data.path {name!r} is a name of the Hugging Face Hub, and reading it")
    wanted = f"{name}{f', subset {subset}' if subset else ''}, split {split or 'train'}"
    try:
        found = datasets.load_dataset(name, subset or None, split=split or "train")
    except Exception as error:  # network, a name that is not there, a gated one, a split: each its own class
        what = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"data.path {name!r}: there is no such file or folder, and the Hugging Face Hub did not give "
            f"{wanted} ({type(error).__name__}: {what}). Mend the path; or where there is a network, save "
            f"it with datasets.load_dataset({name!r}).save_to_disk(FOLDER), and name that folder."
        ) from error
    return SavedDataset(found, wanted)


def _package(what: str) -> Any:
    try:
        import datasets  # an extra
    except ImportError as error:
        raise ConfigError(
            f"{what} needs the package `datasets`. Install it (pip install -e '.[datasets]'), or write the "
            "prompts to a JSONL file."
        ) from error
    return datasets
