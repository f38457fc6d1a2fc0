import pytest


@pytest.fixture
def update_golden(request):
    return request.config.getoption("--update-golden")
