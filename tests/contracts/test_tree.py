"""The tests' tree shows the package's: where a module's tests lie follows from where the module lies."""

from pathlib import Path

import pytest

import anatune

PACKAGE = Path(anatune.__file__).parent
UNIT = PACKAGE.parent / "tests" / "unit"


@pytest.mark.skipif(not UNIT.exists(), reason="an installed package has no tests beside it")
def test_unit_tests_lie_as_what_they_test():
    """``test_NAME.py`` or ``test_NAME_more.py`` in the folder of the module or package NAME (``_NAME``, too)."""
    lost = []
    for path in UNIT.rglob("test_*.py"):
        place = path.relative_to(UNIT)
        folder = PACKAGE / place.parent if place.parts[0] != "bench" else PACKAGE.parent / place.parent
        words = place.stem.removeprefix("test_").split("_")
        names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
        known = {found.stem.removeprefix("_") for found in folder.glob("*") if found.suffix == ".py" or found.is_dir()}
        if not known.intersection(names):
            lost.append(f"{place}: nothing in {folder.relative_to(PACKAGE.parent)} is called {' or '.join(names)}")
    assert not lost
