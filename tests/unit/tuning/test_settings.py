"""What one asks of a session, as far as no device is needed to refuse it."""

import pytest

from anatune.errors import SpaceError
from anatune.tuning.settings import TuningSettings


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cluster": "tcp://127.0.0.1:8786", "tracker": "127.0.0.1:9190", "key": "pi4"}, "expected one of them"),
        ({"tracker": "127.0.0.1:9190"}, "tracker is given without key"),
        ({"key": "pi4"}, "key is given without tracker"),
        ({"tls": "certificates"}, "tls is given without the address of a cluster"),
        ({"cluster": object(), "tls": "certificates"}, "tls is given without the address of a cluster"),
        ({"cluster": "tcp://127.0.0.1:8786", "manifest": "kernels"}, "leave one of them out"),
        ({"reuse": "no"}, "reuse is 'no'"),
    ],
)
def test_places_that_contradict_each_other_are_refused(given, said):
    with pytest.raises(SpaceError, match=said):
        TuningSettings(**given)
