"""Compile functions to object files, each only once: a disk cache has them by content, for any model.

Symbols are named after the content, so that an object file fits into any library; the linker makes aliases for the
names that a library gives its functions.
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
from anatune.codegen.linking import link_objects, load_static_object, object_of
from anatune.disk_cache import DiskCache, sources_of, versions_of
from anatune.errors import BuildError, no_scratch
from anatune.files import temporary_folder
from anatune.network.relax.kernels import KERNEL
from anatune.resources import usable_cores, user_cache_folder

__all__ = ["FOLDERS", "ObjectFiles", "compile_objects"]

FOLDERS = ("codegen", "network/relax")
"""Folders of the sources that object files depend on: a change compiles all functions again."""
_MOST_BYTES = 256 << 20
"""Size limit of the cache, about 20,000 functions."""
_SYMBOL = "__tvm_ffi_"
"""Prefix that TVM's runtime puts before the names of functions."""


class ObjectFiles(NamedTuple):
    """Object files of functions.

    Attributes
    ----------
    contents : dict of str to bytes
        Name of each different function in its object file -> the file's content.
    aliases : dict of str to str
        Symbol of a function in the library -> its symbol in the object file.
    """

    contents: dict[str, bytes]
    aliases: dict[str, str]

    def modules(self) -> list[TvmObject]:
        """Return each object file as a TVM module, for libraries."""
        with temporary_folder() as folder:
            return [load_static_object(file, name) for name, file in self._files(folder)]

    def load(self) -> TvmObject:
        """Link and load a library; return it as a TVM module, or None without functions.

        Raises
        ------
        BuildError
            There is no linker, or the disk is full.
        """
        if not self.contents:
            return None
        with temporary_folder() as folder:
            link_objects([str(file) for _, file in self._files(folder)], folder / "all.so", self.aliases)
            return import_tvm().runtime.load_module(str(folder / "all.so"))

    def _files(self, folder: Path) -> list[tuple[str, Path]]:
        """Write all object files into a folder, and return their names and paths."""
        files = [(name, folder / f"{number}.o") for number, name in enumerate(self.contents)]
        try:
            for name, file in files:
                file.write_bytes(self.contents[name])
        except OSError as error:
            raise BuildError(no_scratch(error)) from None
        return files


def compile_objects(functions: Mapping[str, TvmObject], target: TvmObject, folder: Path | None = None) -> ObjectFiles:
    """Return functions as object files, from the cache or compiled on all cores.

    Parameters
    ----------
    functions : mapping of str to PrimFunc
        Functions by their names in the library.
    target : tvm.target.Target
    folder : Path, optional
        The cache folder; by default the user's.

    Raises
    ------
    BuildError
        TVM refuses a function; the message names all refused ones.
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
    """Return a digest of all that a function's object file depends on, except its name."""
    tvm = import_tvm()
    text = str(tvm.ir.save_json(function.with_attr("global_symbol", "")))
    if KERNEL in function.attrs:  # names in the object begin with the kernel's name
        text = text.replace(name, "\0")  # no JSON has that: two texts that become equal differ in their names alone
    parts = (text, str(target), sources_of(*FOLDERS), versions_of("tvm", "tvm_ffi"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
