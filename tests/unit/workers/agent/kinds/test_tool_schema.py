"""What a policy is told of a tool's parameters is what is taken."""

from typing import Literal

import pytest

from protocol.errors import ConfigError
from workers.agent.kinds.tool_schema import ToolRefused, arguments_of, tool_of


class Typed:
    def pick(self, n: Literal[1, 2], mode: Literal["a", None] = None, on: Literal[True] = True) -> str:
        """Picks."""

    def pair(self, p: tuple[str, int], all: tuple[int, ...] = ()) -> str:
        """Pairs."""

    def scale(self, by: float, options: dict | None = None) -> str:
        """Scales."""

    def odd(self, x: Literal[b"a"]) -> str:
        """Odd."""


def test_a_schema_says_what_is_taken():
    properties = tool_of(Typed.pick, "pick").schema["function"]["parameters"]["properties"]
    assert properties == {
        "n": {"type": "integer", "enum": [1, 2]}, "mode": {"enum": ["a", None]},
        "on": {"type": "boolean", "enum": [True]},
    }  # fmt: skip
    tool = tool_of(Typed.pair, "pair")
    assert tool.schema["function"]["parameters"]["properties"] == {
        "p": {
            "type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}],
            "minItems": 2, "maxItems": 2,
        },
        "all": {"type": "array", "items": {"type": "integer"}},
    }  # fmt: skip
    assert arguments_of(tool, '{"p": ["a", 1], "all": [1, 2, 3]}') == {"p": ["a", 1], "all": [1, 2, 3]}
    with pytest.raises(ConfigError, match=r"The value b'a' in a Literal of odd\(x\) is none that JSON has"):
        tool_of(Typed.odd, "odd")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("pair", '{"p": [1, "a"]}'), ("pair", '{"p": ["a"]}'), ("pair", '{"p": ["a", 1, 2]}'),
        ("pair", '{"p": "ab"}'), ("pick", '{"n": true}'), ("pick", '{"n": "1"}'),
    ],
)  # fmt: skip
def test_what_a_schema_does_not_say_is_refused(name, arguments):
    with pytest.raises(ToolRefused, match=r"expected \{"):
        arguments_of(tool_of(getattr(Typed, name), name), arguments)


def test_a_number_that_json_does_not_have_is_refused():
    tool = tool_of(Typed.scale, "scale")
    for arguments in ('{"by": NaN}', '{"by": -Infinity}', '{"by": 1, "options": {"deep": [NaN]}}'):
        with pytest.raises(ToolRefused, match=r"^The arguments of scale are no JSON: it has no "):
            arguments_of(tool, arguments)
    with pytest.raises(ToolRefused, match="'by' of scale is inf; expected"):
        arguments_of(tool, '{"by": 1e999}')
    assert arguments_of(tool, '{"by": -1.5, "options": {"n": 2}}') == {"by": -1.5, "options": {"n": 2}}
    assert arguments_of(tool, '{"by": 3}') == {"by": 3}
