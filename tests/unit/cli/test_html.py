"""Where a page may be written: told before anything is searched."""

import os

import pytest

from anatune.cli.html import check_html
from anatune.cli.output import UsageError

pytest.importorskip("plotly", reason="pip install 'anatune[report]'")


def test_a_page_takes_no_other_file_s_place(tmp_path):
    records = tmp_path / "tuning.sqlite"
    records.touch()
    (tmp_path / "link").symlink_to(records)
    check_html(None, records)
    check_html(tmp_path / "page.html", str(records), None, "postgresql://user@host/db")
    for page in (records, tmp_path / "link"):
        with pytest.raises(UsageError, match=r"the page would replace .*tuning\.sqlite"):
            check_html(page, str(records))


def test_a_page_needs_a_folder_and_a_name(tmp_path):
    with pytest.raises(IsADirectoryError):
        check_html(tmp_path)
    with pytest.raises(FileNotFoundError, match="the folder is missing"):
        check_html(tmp_path / "missing" / "page.html")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the system lets root write everywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(PermissionError, match="cannot be written to"):
        check_html(tmp_path / "locked" / "page.html")
