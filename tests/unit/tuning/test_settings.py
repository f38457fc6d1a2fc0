"""What one asks of a session, as far as no device is needed to refuse it."""

import pytest

from anatune.errors import SpaceError
from anatune.tuning.settings import TuningSettings
from tests.wording import refuses


@pytest.mark.parametrize(
    "given",
    [
        {"cluster": "tcp://127.0.0.1:8786", "tracker": "127.0.0.1:9190", "key": "pi4"},
        {"tracker": "127.0.0.1:9190"},
        {"key": "pi4"},
        {"tls": "certificates"},
        {"cluster": object(), "tls": "certificates"},
        {"cluster": "tcp://127.0.0.1:8786", "manifest": "kernels"},
        {"reuse": "no"},
    ],
)
def test_places_that_contradict_each_other_are_refused(given):
    with refuses(SpaceError):
        TuningSettings(**given)
