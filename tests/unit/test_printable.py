import pickle

import pytest

from anatune.errors import AnatuneError, SpecError
from anatune.printable import printable

HOSTILE = "a\x1b[31mb\x9b2Jc\x07\u202ed\x7f\ud800"


def test_control_characters_are_shown_and_signs_stay():
    assert printable(HOSTILE) == r"a\x1b[31mb\x9b2Jc\x07\u202ed\x7f\ud800"
    for text in ("", "größer ≥ 1 µs, 計算", "two\nlines\tand a tab", printable(HOSTILE)):
        assert printable(text) == text


@pytest.mark.parametrize("kind", [AnatuneError, SpecError])
def test_messages_are_one_printable_line(kind):
    error = kind(f"{HOSTILE}\nand more", 5)
    assert str(error.args[0]).isprintable()
    assert error.args[0].endswith(" and more")
    assert pickle.loads(pickle.dumps(error)).args == error.args
