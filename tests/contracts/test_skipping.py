"""What tests need and cannot import is a reason to skip them, whatever its import raises."""

import sys

import pytest


@pytest.mark.parametrize(
    "line", ["raise RuntimeError('no operator')", "raise OSError('no library')", "import missing_x"]
)
def test_a_package_that_cannot_be_imported_is_skipped_with_its_reason(tmp_path, monkeypatch, line):
    (tmp_path / "there_in_part.py").write_text(line)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(pytest.skip.Exception, match=r"there_in_part.*no operator|no library|missing_x"):
        pytest.importorskip("there_in_part")
    assert "there_in_part" not in sys.modules
