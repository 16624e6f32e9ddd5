"""What a program gives to a Controller is refused at once, in one sentence, if no run could use it."""

import functools
from pathlib import Path
from typing import ClassVar

import pytest

from controller import Controller
from controller.config.models import Config
from protocol.errors import ConfigError


async def rows():
    yield {"prompt": "a"}


async def tell(text):
    pass


class Teller:
    async def __call__(self, text):
        pass


class ByPlace:
    def __getitem__(self, place):
        return {"prompt": str(place)}


class Frame:
    """As of pandas: whoever goes through it gets the names of its columns."""

    columns = ("prompt", "answer")
    iloc: ClassVar[list[dict[str, str]]] = []

    def __iter__(self):
        return iter(self.columns)


def refused(words, config=None, **given):
    with pytest.raises(ConfigError, match=words) as found:
        Controller(Config() if config is None else config, **given)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("given", "kind"), [("run.yaml", "str"), ({"run": {}}, "dict")])
def test_only_a_configuration_is_one(given, kind):
    refused(rf"^The configuration is .* of type {kind}; expected what `load_config\(path, ", given)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": {"name": "z"}}, r"another type than its key has: .*Expected `RunSettings`"),
        ({"steps": 3}, r"holds steps = 3 of type int, and there is no such key"),
        ({"run": Config().run.model_copy(update={"stepz": 3})}, r"holds run\.stepz = 3 of type int"),
        ({"run": Config().run.model_copy(update={"steps": "many"})}, r"Expected `int`.*field_name='steps'"),
    ],
)
def test_a_changed_copy_that_holds_what_no_key_admits_is_refused(change, words):
    refused(words, Config().model_copy(update=change))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            Config.model_validate({"trainer": {"batch_groups": 3, "minibatches": 2}}),
            r"given to Controller has 1 problem:\n  trainer\.minibatches: 3 groups",
        ),
        (
            Config().model_copy(update={"run": Config().run.model_copy(update={"steps": 0})}),
            r"given to Controller has 1 problem:\n  run\.steps: 0 is refused; expected greater than or equal",
        ),
    ],
)
def test_the_rules_of_a_file_hold_for_a_configuration_that_was_none(config, words):
    with pytest.raises(ConfigError, match=words):
        Controller(config)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ("rows.jsonl", r"^`prompts` is 'rows.jsonl' of type str; .*a file of rows is named by data\.path\.$"),
        (Path("rows"), r"a file of rows is named by data\.path\.$"),
        ({"prompt": "a"}, "put a single row into a list, and of several splits pass one"),
        (Frame(), r"of type Frame; .*: of a table, pass the rows, prompts\.to_dict\(\"records\"\)\.$"),
        (rows, "is the function rows; .*: call it, and pass what it returns"),
        (ByPlace, "is the class ByPlace; .*: call it"),
        (rows(), "it is read in a thread"),
        (5, r"is 5 of type int; expected an iterable of rows \(mappings\), such as a list or a generator\.$"),
    ],
)
def test_prompts_that_give_no_rows_are_refused_before_anything_starts(prompts, words):
    refused(words, prompts=prompts)


def test_a_table_of_arrow_is_refused_with_the_call_that_gives_its_rows():
    pyarrow = pytest.importorskip("pyarrow", reason="pip install -e '.[parquet]'")
    table = pyarrow.table({"prompt": ["a"]})
    refused(r"of a table, pass the rows, prompts\.to_pylist\(\)\.$", prompts=table)


def test_whatever_gives_rows_is_taken_and_not_yet_asked():
    def broken():
        raise AssertionError("It was asked.")
        yield

    for prompts in (None, [], ByPlace(), broken(), iter([]), map(dict, [])):
        Controller(Config(), prompts=prompts)


@pytest.mark.parametrize("name", ["on_warning", "on_progress", "on_evaluation"])
@pytest.mark.parametrize("callback", [tell, Teller(), functools.partial(tell)])
def test_a_callback_that_nobody_would_await_is_refused(name, callback):
    refused(f"^`{name}` is .*an `async def`, which nobody would await; expected a plain", **{name: callback})


def test_a_callback_that_cannot_be_called_is_refused():
    refused("^`on_warning` is 5 of type int; expected a function, or None", on_warning=5)


def test_prompts_take_the_place_of_one_source_and_of_no_mixture():
    sources = [{"path": "easy.jsonl"}, {"path": "hard.jsonl"}]
    mixed, alone = (Config.model_validate({"data": {"sources": sources[:count]}}) for count in (2, 1))
    words = r"^`prompts` is one source, and data\.sources of the configuration mixes 2; expected one"
    refused(words, mixed, prompts=[{"prompt": "a"}])
    Controller(alone, prompts=[{"prompt": "a"}])
