"""What a configuration file holds is within bounds, or refused in one sentence with its line."""

import pytest

from controller.config.load import load_config
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
