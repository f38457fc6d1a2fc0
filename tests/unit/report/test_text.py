from anatune.report.text import Line, columns, join_lines, wrap_items, wrap_text


def test_items_are_never_cut():
    items = ["i 8x2x16x2x1", "j 32x2x16x4x1", "k 64x4x4", "unroll 512"]
    lines = wrap_items(items, 30, indent="    ", hanging="      ")
    assert all(len(line) <= 30 for line in lines)
    assert ", ".join(line.strip().rstrip(",") for line in lines) == ", ".join(items)
    assert "\N{NO-BREAK SPACE}" not in "".join(lines)
    # Wider than the line: kept whole.
    assert wrap_items(["i 2x2x2x2x2x2"], 5) == ["i 2x2x2x2x2x2"]


def test_wrapped_keeps_long_words():
    assert wrap_text("a " + "b" * 30 + " c", 10) == ["a", "b" * 30, "c"]


def test_numbers_keep_their_units():
    assert wrap_text("takes about 305.5 ms or 3 % more", 16) == ["takes about", "305.5 ms or 3 %", "more"]


def test_columns_align_and_close_up():
    rows = [["#", "name"], ["1", "x"], ["10", "longer"]]
    assert columns(rows, left=(1,)) == [" #  name", " 1  x", "10  longer"]
    assert columns(rows, left=(1,), width=9) == [" # name", " 1 x", "10 longer"]


def test_plain_has_no_trailing_blanks():
    assert join_lines([Line("a  ", "bold"), Line("")]) == "a\n\n"
