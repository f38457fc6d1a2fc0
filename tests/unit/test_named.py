"""Objects and packages by name."""

import pytest

from anatune.errors import AnatuneError, MissingDependencyError
from anatune.named import check_all, import_optional, resolve
from tests.wording import refuses


def test_a_missing_package_is_one_line_with_the_command():
    with refuses(MissingDependencyError) as caught:
        import_optional("no_such_package", "optuna", "this")
    assert "\n" not in str(caught.value)


def test_objects_by_name():
    assert resolve("anatune.named:resolve") is resolve
    for name in ("anatune.no_such_module:x", "anatune.named:no_such_object"):
        with refuses(AnatuneError):
            resolve(name)


def test_all_that_is_missing_is_one_line():
    def needs(package, extra):
        return lambda: import_optional(package, extra, f"the part of {package}")

    one, two = needs("no_such_package", "optuna"), needs("nor_this", "onnx")
    with refuses(MissingDependencyError):
        check_all(one, lambda: None, two, lambda: check_all(two, one))
    with pytest.raises(MissingDependencyError) as caught:
        check_all(lambda: check_all(one, two), two)
    assert str(caught.value).count("pip install") == 2
    check_all(lambda: None)
