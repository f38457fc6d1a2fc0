"""Files that a stranger looks for: licence, notice, citation, changelog, forms of issues."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import anatune
from tests.seeded_faults import FAULTS

ROOT = Path(anatune.__file__).parents[1]
PAPERS = ("ICS24", "TACO22", "Droplet24", "NoSE", "BO24")

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="an installed package has none beside it"
)


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_licence_is_apaches_text():
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    project = msgspec.toml.decode(text_of("pyproject.toml"))["project"]
    assert (project["license"], project["version"]) == ("Apache-2.0", anatune.__version__)


def test_the_notice_names_whoever_measured():
    notice = text_of("NOTICE")
    source = msgspec.toml.decode(text_of("tests/golden/SOURCE.toml"))
    for one in source["repository"].values():
        assert f"{one['name']}, commit {one['commit']}" in notice
        holder = re.search(r"\(c\) .*", one["licence"])
        assert holder is None or f"Copyright {holder[0]}" in notice
    cards = sorted((ROOT / "models").glob("*/card.*"))
    assert cards
    for path in cards:
        card = (msgspec.toml if path.suffix == ".toml" else msgspec.json).decode(path.read_bytes())
        assert f"models/{path.parent.name}" in notice
        for data in card.get("data", ()):
            assert re.match(r"[^,]+, commit \w+", data["source"])[0] in notice, path


def test_the_mit_text_in_the_notice_is_that_of_the_repositories():
    words = text_of("NOTICE").partition("copyright lines above:")[2].split()
    licences = sorted((ROOT / "tests/golden/licenses").iterdir())
    assert licences
    for path in licences:
        _, found, body = path.read_text().partition("Permission is hereby granted")
        assert (found + body).split()[:-1] == words[:-1], path.name  # one of them ends without a full stop


@pytest.fixture(scope="module")
def citation():
    yaml = pytest.importorskip("yaml")  # with mkdocs, check-jsonschema and others
    return yaml.safe_load(text_of("CITATION.cff"))


def test_the_citation_says_version_and_papers(citation):
    assert citation["version"] == anatune.__version__
    assert citation["license"] == "Apache-2.0"
    known = msgspec.toml.decode(text_of("anatune/references.toml"))
    cited = {paper["title"]: paper for paper in citation["references"]}
    assert set(cited) == {known[key]["title"] for key in PAPERS}
    for one in (known[key] for key in PAPERS):
        paper = cited[one["title"]]
        assert (paper["year"], paper.get("doi")) == (one["year"], one.get("doi"))
        names = [f"{author['given-names']} {author['family-names']}" for author in paper["authors"]]
        assert names == one["authors"]


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("citation-file-format", ["CITATION.cff"]),
        ("github-issue-forms", ["bug.yml", "device.yml", "prediction.yml"]),
        ("github-issue-config", ["config.yml"]),
    ],
)
def test_files_for_programs_follow_their_schemas(schema, files):
    pytest.importorskip("check_jsonschema")
    folder = ROOT if schema.startswith("citation") else ROOT / ".github/ISSUE_TEMPLATE"
    if schema.endswith("forms"):
        assert sorted(files) == sorted(path.name for path in folder.iterdir() if path.name != "config.yml")
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", "-o", "json", *files],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["status"] == "ok", done.stdout
    assert done.returncode == 0


def test_the_changelog_keeps_its_form():
    lines = text_of("CHANGELOG.md").splitlines()
    assert lines[0] == "# Changelog"
    versions = [line for line in lines if line.startswith("## ")]
    assert versions[0] == "## [Unreleased]"
    for line in versions[1:]:
        assert re.fullmatch(r"## \[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", line), line
    kinds = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert max(map(len, lines)) <= 130


def test_seeded_faults_are_changes_of_code_that_is_there():
    texts = [path.read_text() for path in (ROOT / "anatune").rglob("*.py")]
    assert not [fault.name for fault in FAULTS if sum(text.count(fault.old) for text in texts) != 1]
