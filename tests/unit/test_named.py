"""Objects and packages by name."""

import pytest

from anatune.errors import AnatuneError, MissingDependencyError
from anatune.named import import_optional, resolve


def test_a_missing_package_is_one_line_with_the_command():
    with pytest.raises(
        MissingDependencyError, match=r"needs the package no_such_package.*; pip install 'optuna"
    ) as caught:
        import_optional("no_such_package", "optuna", "this")
    assert "\n" not in str(caught.value)


def test_objects_by_name():
    assert resolve("anatune.named:resolve") is resolve
    for name in ("anatune.no_such_module:x", "anatune.named:no_such_object"):
        with pytest.raises(AnatuneError, match="cannot be imported"):
            resolve(name)
