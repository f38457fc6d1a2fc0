"""``anatune serving``: tables, JSON, pages, and bad input."""

import json

import pytest

from tests.unit.servers.serving.models import LLAMA, MIXTRAL, write_config
from tests.wording import check_texts


def test_a_table_and_what_it_means(anatune, tmp_path):
    path = write_config(tmp_path, LLAMA)
    words = ["serving", path, "--hw", "h100,h200", "--tp", "1,2", "--concurrency", "1,32", "--price", "h100=2.5"]
    done = anatune(*words, "--tpot", "6ms", "--html", tmp_path / "page.html")
    assert done.returncode == 0
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("h")]
    assert [row[0] for row in rows] == ["h100_sxm"] * 4 + ["h200"] * 4
    assert {"met", "missed"} <= {word for row in rows for word in row}
    assert "Pareto" not in done.stdout
    assert "<html" in (tmp_path / "page.html").read_text()[:200]
    tree = json.loads(anatune(*words, "--json").stdout)
    assert len(tree) == 8
    assert tree[0]["cost_per_million_tokens"] == pytest.approx(2.5 / 3600 / tree[0]["tokens_per_s_per_device"] * 1e6)
    assert tree[4]["cost_per_million_tokens"] is None
    assert sum(tree[1]["parts"].values()) == pytest.approx(tree[1]["tpot_s"], rel=1e-3)
    assert {row["meets_limits"] for row in tree} == {None}


def test_what_is_not_possible_is_said_in_one_line(anatune, tmp_path):
    done = anatune("serving", write_config(tmp_path, MIXTRAL), "--hw", "h100", "--tp", "1,2", "--concurrency", "8")
    assert done.returncode == 0
    assert "does not fit" in done.stdout
    assert any(
        line.startswith("h100_sxm 2") or line.split()[:2] == ["h100_sxm", "2"] for line in done.stdout.splitlines()
    )


BAD = {
    "no file": ("none.json", "--hw", "h100"),
    "device": ("config.json", "--hw", "h1000"),
    "list": ("config.json", "--hw", "h100", "--tp", "1,two"),
    "precision": ("config.json", "--hw", "h100", "--precision", "int3"),
    "duration": ("config.json", "--hw", "h100", "--tpot", "20"),
    "price": ("config.json", "--hw", "h100", "--price", "h200=2"),
    "tokens": ("config.json", "--hw", "h100", "--isl", "0"),
    "cpu": ("config.json", "--hw", "xeon_8124m"),
}


@pytest.mark.parametrize("words", BAD.values(), ids=BAD)
def test_bad_input_is_one_line(anatune, tmp_path, words):
    write_config(tmp_path, LLAMA)
    done = anatune("serving", tmp_path / words[0], *words[1:])
    assert done.returncode != 0
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    check_texts([done.stderr])
