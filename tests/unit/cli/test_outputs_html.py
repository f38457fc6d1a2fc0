"""A page takes the place of no other file of the same command, not even of one that is not there yet."""

import pytest

from anatune.cli.output import UsageError
from anatune.cli.outputs import check_html
from tests.wording import refuses

pytest.importorskip("plotly", reason="pip install '.[report]'")


def test_a_page_takes_no_other_file_s_place(tmp_path):
    records = tmp_path / "tuning.sqlite"
    records.touch()
    (tmp_path / "link").symlink_to(records)
    check_html(None, records)
    check_html(tmp_path / "page.html", str(records), None, "postgresql://user@host/db")
    for page in (records, tmp_path / "link"):
        with refuses(UsageError):
            check_html(page, str(records))
