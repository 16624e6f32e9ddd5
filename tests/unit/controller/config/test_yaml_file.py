"""What a configuration file holds is within bounds, or refused in one sentence with its line."""

import pytest
import yaml

from controller.config.load import load_config
from controller.config.yaml_file import read_yaml, write_yaml
from protocol.errors import ConfigError

BOMB = "a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)
MERGES = "m0: &m0 {a: 1, b: 2}\n" + "".join(
    f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 20)}], k{n}: 1}}\n" for n in range(1, 9)
)
REFUSED = {
    "an alias bomb": (BOMB, "line 5: there are more than 10,000 values, aliases written out"),
    "a bomb of merges": (MERGES, "there are more than 10,000 values, aliases written out"),
    "an alias of itself": ("run: &r\n  name: *r\n", "line 2: the alias *r stands for what it is in"),
    "an alias of nothing": ("run: {name: *r}\n", "line 1: the alias *r stands for what it is in, or for"),
    "nested lists": ("run: " + "[" * 3000 + "]" * 3000, "line 1: there are values nested deeper than 32"),
    "nested maps": ("run: " + "{a: " * 900 + "1" + "}" * 900, "values nested deeper than 32"),
    "blocks within blocks": ("".join(f"{' ' * n}a:\n" for n in range(300)), "line 33: there are values"),
    "a long integer": ("run: {steps: " + "9" * 10_000 + "}", "line 1: a number has 10,000 digits"),
    "a long hexadecimal": ("run: {steps: 0x" + "f" * 10_000 + "}", "line 1: a number has 10,002 digits"),
    "half a number": ("run: {steps: 0x_}", "line 1: '0x_' is no number"),
    "a set": ("run: {name: !!set {a}}", "line 1: it has the tag 'tag:yaml.org,2002:set'"),
    "bytes": ("run: {name: !!binary aGk=}", "line 1: it has the tag 'tag:yaml.org,2002:binary'"),
    "an object": ("run: !!python/object/apply:os.system [id]", "line 1: it has the tag"),
    "half a character": ('run:\n  name: "a\\ud800"\n', "line 2: a text has half a character"),
    "half a character in a key": ('run: {"\\udc00": 1}', "line 1: a text has half a character"),
    "a long text": ("# " + "x" * (1 << 18), "it has more than 262,144 characters"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_in_one_sentence(tmp_path, what):
    text, words = REFUSED[what]
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_config(str(file), ())
    assert words in str(raised.value)
    assert len(str(raised.value)) < 400 + len(str(file))


@pytest.mark.parametrize("value", ["[" * 3000, "&a [*a]", "9" * 10_000, "0b_", "!!set {a}"])
def test_so_is_an_override(tmp_path, value):
    (tmp_path / "run.yaml").touch()
    with pytest.raises(ConfigError, match="on the command line: its value is not YAML"):
        load_config(str(tmp_path / "run.yaml"), [f"run.steps={value}"])


def test_aliases_that_say_little_are_as_good_as_written_out(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("run: {name: &name forty}\ndata: {columns: &c {prompt: question}}\nmodel: {path: *name}")
    config = load_config(str(file), ())
    assert (config.run.name, config.model.path) == ("forty", "forty")
    assert config.data.columns == {"prompt": "question"}


def test_an_override_changes_one_of_the_places_that_share_an_anchor(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("evaluation: {sampling: &s {temperature: 1.0}}\nrollout: {sampling: *s}")
    config = load_config(str(file), ["rollout.sampling.temperature=0.5"])
    assert (config.rollout.sampling.temperature, config.evaluation.sampling.temperature) == (0.5, 1.0)


NUMBERS = {
    "010": 10, "-007": -7, "08": 8, "0": 0, "+5": 5, "1_000": 1000, "0x10": 16, "-0xff": -255, "0b11": 3,
    "0.10": 0.1, "5.": 5.0, ".5": 0.5, "-.5": -0.5, "1e-5": 1e-5, "1E+5": 1e5,
    "1.5e3": 1500.0, "-.inf": -float("inf"),
}  # fmt: skip
TEXTS = [
    "1:30",
    "48:00:00",
    "1:30.5",
    "190:20:30.15",
    "2026-01-01",
    "no",
    "on",
    "0o10",
    "0x",
    "1e",
    "e5",
    "_1",
    "1.2.3",
]


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_is_of_ten_unless_it_says_so(text):
    value, _ = read_yaml(text)
    assert (value, type(value)) == (NUMBERS[text], type(NUMBERS[text]))


@pytest.mark.parametrize("text", TEXTS)
def test_what_has_no_form_of_a_number_is_the_text_that_it_is(text):
    assert read_yaml(text)[0] == text


def test_a_time_limit_is_given_without_quotes_on_the_command_line(tmp_path):
    (tmp_path / "run.yaml").write_text("run: {seed: 010}")
    config = load_config(str(tmp_path / "run.yaml"), ["cluster.time_limit=48:00:00"])
    assert (config.cluster.time_limit, config.run.seed) == ("48:00:00", 10)
    with pytest.raises(ConfigError, match=r"run\.seed \(command line\): '1:30' is refused"):
        load_config(str(tmp_path / "run.yaml"), ["run.seed=1:30"])


def test_what_is_written_is_read_again_by_this_reader_and_any_other():
    tree = {"b": [*NUMBERS, *TEXTS, "yes", "null", "", "${HOME}", "a: b", "[x]"], "a": [10, 1e-5, True, None]}
    text = write_yaml(tree)
    assert read_yaml(text)[0] == yaml.safe_load(text) == tree
    assert list(read_yaml(text)[0]) == ["b", "a"]


def test_two_halves_of_a_character_are_one(tmp_path):
    (tmp_path / "run.yaml").write_text('run: {name: "\\ud83d\\ude00"}')
    assert load_config(str(tmp_path / "run.yaml")).run.name == "\U0001f600"
