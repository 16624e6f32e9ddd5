"""Makes texts of others fit for a terminal, a log and a status line; long texts are cut.

Invariants: characters that could control a terminal, or reverse a line, are shown as escapes;
line ends and tabs stay, so that a traceback is readable; a text that was made plain stays as it is.
"""

import re

# C0 but tab and newline, DEL, C1; then characters that end or reverse lines, and lone surrogates
_UNPRINTABLE = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_TEXT = re.compile(f"[{_UNPRINTABLE}]")
_IN_NAME = re.compile(rf"[\t\n{_UNPRINTABLE}]")

MOST_REASON_CHARS = 16_000  # of a worker's reason why something failed
MOST_ROW_CHARS = 500  # of a row that is shown to a person


def plain(text: str) -> str:
    """The text without control characters: each as its escape, a carriage return before a newline gone."""
    return _IN_TEXT.sub(_escaped, text.replace("\r\n", "\n"))


def plain_line(text: str) -> str:
    """As `plain`, on one line."""
    return _IN_NAME.sub(_escaped, text)


def one_line(text: str) -> str:
    """The text without line ends, for a sentence: each run of white space is one space."""
    return " ".join(text.split())


def sentence(text: str) -> str:
    """The text with a full stop, so that another sentence may follow it."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def is_plain_line(text: str) -> bool:
    """Whether the text is one line without control characters."""
    return _IN_NAME.search(text) is None


def has_half_characters(text: str) -> bool:
    """Whether a text has lone surrogates: such a text cannot be encoded in UTF-8."""
    try:
        text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return True
    return False


def begin_and_end(text: str, most: int = MOST_REASON_CHARS) -> str:
    """The text made plain; if it has more than `most` characters, only its two ends, a line between them.

    The beginning says what has failed, the end of a traceback says where.
    """
    text = plain(text)
    return text if len(text) <= most else f"{text[: most // 2]}\n...\n{text[-(most // 2) :]}"


def begin_of(text: str, most: int = MOST_ROW_CHARS) -> str:
    """The text; if it has more than `most` characters, only its beginning, and how many there are."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")
