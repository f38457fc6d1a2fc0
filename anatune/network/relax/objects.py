"""Functions as object files, each compiled once: by the program that it is, on the disk, for any model that has it.

Symbols are named after what they were compiled from, so that an object fits into any library; the names that a library
gives its functions are aliases, which the linker makes.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from anatune.codegen.compat import TvmObject, import_tvm
from anatune.codegen.extremes import register_pipeline
from anatune.codegen.linking import link_objects, object_of, static_library
from anatune.disk_cache import DiskCache, sources_of, versions_of
from anatune.errors import BuildError, no_scratch
from anatune.files import temporary_folder
from anatune.network.relax.kernels import KERNEL
from anatune.resources import usable_cores, user_cache_folder

__all__ = ["FOLDERS", "ObjectFiles", "compile_objects"]

FOLDERS = ("codegen", "network/relax")
"""Folders of the sources that make an object file of a function: it is compiled again where they change."""
_MOST_BYTES = 256 << 20
"""Some 20,000 functions."""
_SYMBOL = "__tvm_ffi_"
"""What TVM's runtime puts before the names of functions."""


class ObjectFiles(NamedTuple):
    """Object files of functions.

    Attributes
    ----------
    contents : dict of str to bytes
        Name of each different function in its object file -> the file.
    aliases : dict of str to str
        Symbol that a function has in the library -> symbol in its object file.
    """

    contents: dict[str, bytes]
    aliases: dict[str, str]

    def modules(self) -> list[TvmObject]:
        """Return each as a module of TVM's, for libraries."""
        with temporary_folder() as folder:
            return [static_library(file, name) for name, file in self._files(folder)]

    def load(self) -> TvmObject:
        """Return a library in this process, as a module of TVM's; None: there are no functions.

        Raises
        ------
        BuildError
            There is no linker, or no space.
        """
        if not self.contents:
            return None
        with temporary_folder() as folder:
            link_objects([str(file) for _, file in self._files(folder)], folder / "all.so", self.aliases)
            return import_tvm().runtime.load_module(str(folder / "all.so"))

    def _files(self, folder: Path) -> list[tuple[str, Path]]:
        """Return all written into a folder."""
        files = [(name, folder / f"{number}.o") for number, name in enumerate(self.contents)]
        try:
            for name, file in files:
                file.write_bytes(self.contents[name])
        except OSError as error:
            raise BuildError(no_scratch(error)) from None
        return files


def compile_objects(functions: Mapping[str, TvmObject], target: TvmObject, folder: Path | None = None) -> ObjectFiles:
    """Return functions as object files, compiled on all cores, or found.

    Parameters
    ----------
    functions : mapping of str to PrimFunc
        By the names that they have in the library.
    target : tvm.target.Target
    folder : Path, optional
        Of what was compiled earlier; the user's own by default.

    Raises
    ------
    BuildError
        TVM refuses one; the message names all that it refuses.
    """
    base = folder or user_cache_folder()
    disk = DiskCache(None if base is None else base / "objects", ".o", _MOST_BYTES)
    keys = {name: _key(name, function, target) for name, function in functions.items()}
    symbols = {name: f"anatune_{keys[name]}" if sys.platform.startswith("linux") else name for name in functions}
    distinct = {symbol: name for name, symbol in symbols.items()}
    pipeline = register_pipeline(import_tvm())

    def compile_symbol(symbol: str) -> bytes | BuildError:
        name = distinct[symbol]
        is_cached = symbol != name  # other linkers make no aliases
        content = disk.read(keys[name]) if is_cached else None
        if content is None:
            try:
                content = object_of(symbol, functions[name], target, pipeline)
            except BuildError as error:
                return error
            if is_cached:
                disk.write(keys[name], content)
        return content

    with ThreadPoolExecutor(usable_cores()) as pool:
        contents = dict(zip(distinct, pool.map(compile_symbol, distinct), strict=True))
    errors = {distinct[symbol]: one for symbol, one in contents.items() if isinstance(one, BuildError)}
    if errors:
        raise BuildError(f"TVM cannot compile {', '.join(errors)}: {next(iter(errors.values()))}")
    aliases = {f"{_SYMBOL}{name}": f"{_SYMBOL}{symbol}" for name, symbol in symbols.items() if name != symbol}
    return ObjectFiles({symbol: one for symbol, one in contents.items() if isinstance(one, bytes)}, aliases)


def _key(name: str, function: TvmObject, target: TvmObject) -> str:
    """Return a digest of all that a function's object file depends on, but for its name."""
    tvm = import_tvm()
    text = str(tvm.ir.save_json(function.with_attr("global_symbol", "")))
    if KERNEL in function.attrs:  # what it holds is named after it; those of TVM's have operators in them named so, too
        text = text.replace(name, "\0")  # no JSON has that: two texts that become equal differ in their names alone
    parts = (text, str(target), sources_of(*FOLDERS), versions_of("tvm", "tvm_ffi"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
