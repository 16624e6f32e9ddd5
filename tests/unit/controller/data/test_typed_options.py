"""Options behind a question mark."""

from controller.data.typed_options import typed


def test_an_option_is_json_where_it_can_be_and_text_else():
    assert [typed(text) for text in ("3", "0.5", "true", '["a"]', "easy", "1 2")] == [
        3, 0.5, True, ["a"], "easy", "1 2",
    ]  # fmt: skip
