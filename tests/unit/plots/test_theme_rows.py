from anatune.plots.theme import row_figure


def test_names_are_wrapped_and_are_text():
    figure = row_figure("Rows", "time (us)", ["<b>short</b>", "a name of many words " * 20])
    short, long = (note.text for note in figure.layout.annotations)
    assert short == "&lt;b&gt;short&lt;/b&gt;"
    assert long.count("<br>") == 2
    assert long.endswith(" …")
    assert row_figure("Rows", "", []).layout.height < figure.layout.height
