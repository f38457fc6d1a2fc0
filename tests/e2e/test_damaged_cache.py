"""Compiled code that was damaged on the disk costs a line and a compilation, not a command."""

import os
import shutil
from pathlib import Path

from anatune.numerics import _jit

WORDS = ("plan", "--hw", "rtx3090", "matmul", "64x64x64", "--top-k", "1", "--json")


def test_damaged_compiled_code(new_process, tmp_path):
    first = new_process(*WORDS)  # also fills the run's own cache
    assert first.returncode == 0
    folder = tmp_path / _jit.cache_folder().name
    shutil.copytree(Path(os.environ["NUMBA_CACHE_DIR"]) / folder.name, folder)
    index = next(folder.rglob("cuda.times.shared_memory.*.code"))
    index.write_bytes(index.read_bytes()[:20])
    code = next(folder.rglob("cuda.times.search.*.code"))
    code.write_bytes(b"")
    again = new_process(*WORDS, NUMBA_CACHE_DIR=str(tmp_path))
    assert again.returncode == 0
    damaged, compiling = again.stderr.splitlines()
    assert damaged == f"note: compiled code in {folder} was damaged; it is compiled again"
    assert compiling == f"note: compiling the rest of the model of cuda kernels, once: the code is stored in {folder}"
    assert again.stdout == first.stdout
    assert new_process(*WORDS, NUMBA_CACHE_DIR=str(tmp_path)).stderr == ""
