"""Options behind a question mark."""

from controller.data.typed_options import options_of, typed


def test_a_plus_in_an_option_is_a_plus():
    """As in the operators of an arithmetic."""
    assert options_of('operators=["+", "-"]&of=a%20b&no=') == {"operators": ["+", "-"], "of": "a b", "no": ""}


def test_an_option_is_json_where_it_can_be_and_text_else():
    assert [typed(text) for text in ("3", "0.5", "true", '["a"]', "easy", "1 2")] == [
        3, 0.5, True, ["a"], "easy", "1 2",
    ]  # fmt: skip
