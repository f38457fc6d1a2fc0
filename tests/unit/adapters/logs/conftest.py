from pathlib import Path

import pytest


@pytest.fixture
def recorded():
    """Return the folder of recorded measurements; tests/golden/SOURCE.toml says where they come from."""
    return Path(__file__).parents[3] / "golden" / "recorded"
