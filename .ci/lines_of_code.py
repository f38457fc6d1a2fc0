"""Count the lines of code of each package, and fail where one has more than `.ci/lines_of_code.txt` allows.

    python .ci/lines_of_code.py [--folders]

A line counts that holds a token: no blank lines, comments or docstrings. The core is all that lies in no optional
package. Larger is not better; who needs more lines than there are left looks first for what can go, and raises the
number in a commit that says why.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = ROOT / ".ci" / "lines_of_code.txt"
PACKAGES = {"adapters", "export", "fleet", "network", "pages", "plots", "servers"}
"""Optional packages; `plots` counts with `pages`."""
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def lines_of_code(path: Path) -> int:
    """Return the lines of a Python file that hold code; a string that stands alone is documentation."""
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documentation.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in _NO_CODE:
                code.update(range(token.start[0], token.end[0] + 1))
    return len(code - documentation)


def main() -> int:
    """Print the count and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folders", action="store_true", help="also count each folder")
    options = parser.parse_args()
    folders: Counter[str] = Counter()
    packages: Counter[str] = Counter()
    for path in sorted((ROOT / "anatune").rglob("*.py")):
        lines, folder = lines_of_code(path), path.relative_to(ROOT / "anatune").parts[0]
        package = folder if folder in PACKAGES else "core"
        packages["pages" if package == "plots" else package] += lines
        folders[str(path.parent.relative_to(ROOT))] += lines
    if options.folders:
        for folder, count in sorted(folders.items()):
            print(f"{count:7,} {folder}")  # noqa: T201
    limits = {name: int(most) for name, most in (line.split() for line in LIMITS.read_text().splitlines())}
    for name, most in limits.items():
        print(f"{packages[name]:7,} {name}, {LIMITS.relative_to(ROOT)} allows {most:,}")  # noqa: T201
    print(f"{packages.total():7,} in all")  # noqa: T201
    return int(limits.keys() != packages.keys() or any(packages[name] > limits[name] for name in limits))


if __name__ == "__main__":
    sys.exit(main())
