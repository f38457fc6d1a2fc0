"""What no kernel can be generated for is told before a search that may take minutes."""

import pytest

from anatune.cli import main

LARGE = "matmul 200000x200000x200000"


@pytest.mark.parametrize(
    "words",
    [
        f"tune --hw host {LARGE} --trials 1",
        "tune --hw host matmul 2147483647x2147483647x2147483647 --trials 1",
        f"tune --hw h200 {LARGE} --build-only kernels",
        f"export --hw host {LARGE}",
        f"export --hw rtx3090 {LARGE}",
    ],
)
def test_operands_that_cannot_be_addressed(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert main.main(words.split()) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
    assert len(said) == 1
    assert said[0].startswith("error: matmul i=2")
    assert "elements, but generated kernels address at most 2147483647" in said[0]
    assert not list(tmp_path.iterdir())
