"""Runs a model factory once, in a separate process.

`python -m workers.models.prepare --factory PATH --directory DIR --seed N`

Invariants: DIR appears complete or not at all (the factory writes aside, then one rename); nothing is written
when DIR exists; the process ends with the one that is named as its parent; standard output carries lines
`progress FRACTION TEXT` with FRACTION from 0 to 1; a failure is one paragraph on standard error and exit
code 1.
"""

import argparse
import os
import sys
import traceback
from pathlib import Path

from protocol.errors import ConfigError, StaleFlowError
from protocol.files import OTHERS, exists, is_file, readable_as_its_folder
from protocol.importing import load_object, put_users_first
from protocol.model_files import made_aside, note_of, remove_unfinished
from protocol.stacks import dump_on_signal
from workers.link.parent import die_with_parent


def prepare(factory: str, directory: Path, *, seed: int, origin: str = "", maker: str = "") -> None:
    """Make the model at `directory` with the factory of this import path, unless it exists.

    `origin` is noted beside it, unless empty; `maker` is a name for this process among all makers.
    Raises: ConfigError if the factory cannot be imported, raises, or leaves no config.json, or if another run
        makes a model of another origin there at the same time.
    """
    if exists(directory):
        report(1.0, f"model found at {directory}")
        return
    report(0.0, f"loading {factory}")
    make = load_object(factory)
    os.umask(umask := os.umask(OTHERS))  # the umask can only be read by setting it
    directory.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(directory)
    with made_aside(directory, maker=maker) as aside:
        make(str(aside), seed=seed, progress=report)
        if not is_file(aside / "config.json"):
            raise ConfigError(
                f"The model factory {factory} returned, but wrote no config.json: its directory holds "
                f"{sorted(path.name for path in aside.iterdir())}. Let it save model and tokenizer with "
                "save_pretrained to the directory that it is given."
            )
        aside.chmod(0o777 & ~umask)  # mkdtemp makes it private; workers may run as another user of the group
        for file in aside.rglob("*"):
            if is_file(file) and not file.is_symlink():
                readable_as_its_folder(file)
        try:
            aside.rename(directory)
        except OSError:
            if not is_file(directory / "config.json"):
                raise
            _refuse_other(directory, origin)  # another run has made it meanwhile
            report(1.0, f"model found at {directory}")
            return
        if origin:
            note_of(directory).write_text(origin)
    report(1.0, f"model written to {directory}")


def _refuse_other(directory: Path, origin: str) -> None:
    note = note_of(directory)
    if origin and not (is_file(note) and note.read_text() == origin):
        raise ConfigError(
            f"Another run has made {directory} meanwhile, with another seed or factory. Give each run a "
            "model.path of its own; or start again, with no model.factory, to begin with that model."
        )


def report(fraction: float, text: str) -> None:
    """Report progress to the parent process, on one line."""
    print(f"progress {min(max(fraction, 0.0), 1.0):.3f} {' '.join(text.split())}", flush=True)


def main() -> int:
    """Run the factory; returns the exit code: 0 when the model is there, else 1."""
    parser = argparse.ArgumentParser(description="Run a model factory once.")
    parser.add_argument("--factory", required=True, help="module:function or file.py:function")
    parser.add_argument("--directory", required=True, type=Path)
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--origin", default="", help="what is noted beside the model of how it was made")
    parser.add_argument("--maker", default="", help="a name for this process among all makers")
    parser.add_argument("--private", action="store_true", help="make it for this user only")
    parser.add_argument("--parent", type=int, help="pid of the process that started this one, to end with")
    arguments = parser.parse_args()
    dump_on_signal()
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
    put_users_first()
    if arguments.private:
        os.umask(OTHERS)
    try:
        prepare(
            arguments.factory, arguments.directory.absolute(), seed=arguments.seed, origin=arguments.origin,
            maker=arguments.maker,
        )  # fmt: skip
    except StaleFlowError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:  # top of the process: whatever the user's factory raises ends it here
        frame = traceback.extract_tb(error.__traceback__)[-1]
        print(
            f"The model factory {arguments.factory} failed: {type(error).__name__}: {error} "
            f"({frame.filename}, line {frame.lineno}). Expected it to write a Hugging Face model and "
            "tokenizer to the directory that it is given; mend it, or set model.path to a model that "
            "exists.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
