"""What somebody else wrote is shown as one short line."""

from engram.settings.errors import DataError, EngramError, Refused, RunStopped, brief, one_line
from tests.samples import entry


def test_a_short_line_stays_as_it_is():
    assert one_line("client 3 is gone: é 100 %") == "client 3 is gone: é 100 %"


def test_what_is_not_printable_is_escaped():
    assert one_line("a\nb\r\x1b[2J\0") == r"a\nb\r\x1b[2J\x00"
    assert one_line("\u2028\u202e\ud800") == r"\u2028\u202e\ud800"


def test_of_a_long_text_both_ends_are_shown():
    for letter in ["x", "\n", "\x1b", "\U000e0001"]:
        with entry(letter):
            shown = one_line("start" + letter * 10**6 + "end")
            assert len(shown) <= 300
            assert shown.startswith("start")
            assert shown.endswith("end")


def test_a_message_is_one_line_of_bounded_length():
    for kind in [EngramError, Refused, DataError, RunStopped]:
        with entry(kind):
            error = kind("a must be b, got " + "\n\x1b" * 10**5 + ": do this")
            assert len(str(error)) <= 2000
            assert str(error).isprintable()
            assert str(error).startswith("a must be b, got ")
            assert str(error).endswith(": do this")
            assert str(kind(str(error))) == str(error)  # as when it comes from another process


def test_a_long_value_is_shown_in_brief():
    texts = ["x" * 10**6, b"x" * 10**6, ["x" * 99] * 99]
    for value in [*texts, [1] * 10**6, (2**60,) * 10**6, 10**5000, -(10**5000)]:
        assert len(brief(value)) < 300


def test_a_short_value_is_shown_as_it_is():
    for value in (3, -(2**63), 0.5, "x", "x" * 100, b"x", [1, 2], (8, 64), None, True):
        assert brief(value) == repr(value)
