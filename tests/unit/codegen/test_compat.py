"""TVM is imported without what it does not need."""

import sys

import pytest

from anatune.codegen import compat


def test_tvm_imports_no_torch_unless_somebody_has(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("tvm", "torch"):
        monkeypatch.setitem(sys.modules, name, None)  # so that what is imported here goes away again
        monkeypatch.delitem(sys.modules, name)
    finders = list(sys.meta_path)
    with compat._without_torch(), pytest.raises(ModuleNotFoundError, match="anatune keeps TVM from importing torch"):
        import torch
    assert sys.meta_path == finders
    import torch

    assert torch.__file__ == str(tmp_path / "torch.py")
    with compat._without_torch():
        import torch
    assert sys.meta_path == finders
