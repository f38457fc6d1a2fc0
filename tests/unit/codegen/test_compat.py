"""What TVM and the linker say, in one line."""

from types import SimpleNamespace

import pytest

from anatune.codegen.compat import link_library
from anatune.errors import BuildError


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "Compilation error:\n/usr/bin/ld: final link failed: No space left on device\ncollect2: error\n\n"
            "Command line: g++ -shared",
            r"cannot link a\.so: .*No space left on device; free space in .*TMPDIR",
        ),
        ("ld: unknown symbol\nCommand line: g++ -shared", r"cannot link a\.so: ld: unknown symbol; is a C compiler"),
        ("", r"cannot link a\.so: RuntimeError; is a C compiler"),
    ],
)
def test_a_link_that_fails_is_one_line_with_the_reason(tmp_path, said, expected):
    def export_library(path):
        raise RuntimeError(said)

    with pytest.raises(BuildError, match=expected) as caught:
        link_library(SimpleNamespace(export_library=export_library), tmp_path / "a.so")
    assert "\n" not in str(caught.value)
