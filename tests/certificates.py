"""Certificates of a lab, made by the commands of docs/howto/fleets.md."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "fleets.md"


def commands_of_page() -> str:
    """Return the commands of the page that make the folder ``tls``, as a script."""
    (block,) = re.findall(r"```console\n(laptop\$ umask 077.*?)```", PAGE.read_text(), re.DOTALL)
    return re.sub(r"^laptop\$ ", "", block, flags=re.MULTILINE)


def make_certificates(folder: Path, days: int = 365) -> Path:
    """Make a set of certificates in a new folder; with -1 days it has expired. Skips without openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl cannot be found")
    script = re.sub(r"\btls\b", folder.name, commands_of_page()).replace(
        "x509 -req -sha256 -days 365", f"x509 -req -sha256 -days {days}"
    )
    subprocess.run(["bash", "-ec", script], cwd=folder.parent, check=True, capture_output=True)
    return folder
