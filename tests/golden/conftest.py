import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the golden files (pytest tests/golden --update-golden); say why in the commit",
    )


@pytest.fixture
def update_golden(request):
    # The option is unknown (not just unset) where pytest was started outside of this folder.
    return request.config.getoption("--update-golden", default=False)
