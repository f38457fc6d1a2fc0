"""``anatune run``: run a compiled model on given or random inputs, or time it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from anatune.cli.options import AsJson, named_sizes, spread
from anatune.cli.output import UsageError, line_width, print_json, print_lines, print_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["run_model"]


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run: its inputs and its output."""

    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", metavar="FILE", help="A .npy file; once for each input, in order.  [default: random inputs]"
        ),
    ] = None
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="NAME=N",
            help="Value of a size that varies, for random inputs and state; once for each size.  [default: planned]",
        ),
    ] = None
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the outputs to this .npz file.")
    ] = None
    benchmark: Annotated[bool, typer.Option("--benchmark", help="Time it: median, fastest and slowest run.")] = False
    profile: Annotated[bool, typer.Option("--profile", help="Report the time of each kernel.")] = False
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=1, help="Number of runs that --benchmark times.")] = 30
    in_memory: Annotated[
        bool,
        typer.Option(
            "--in-memory", help="Read the weights instead of mapping their file: a slower start, faster runs."
        ),
    ] = False

    def arrays(self) -> list[NDArray[np.generic]]:
        """Return the given inputs; [] without any."""
        if self.inputs and self.size:
            raise UsageError("--size is for random inputs, but --input gives files; leave one of them out")
        return [_read_array(path) for path in self.inputs or ()]


@spread
def run_model(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that `anatune compile` wrote.")],
    options: RunOptions,
    as_json: AsJson = False,
) -> None:
    """Run a compiled model. This needs the extra tvm, but no other package that compiling needs."""
    import io

    import numpy as np

    from anatune.cli.outputs import ARRAYS, mark_archive
    from anatune.files import Output
    from anatune.network.compiling.compiled import draw_state
    from anatune.network.compiling.divided import load

    if options.output is not None and options.output.suffix != ".npz" and not options.output.is_char_device():
        raise UsageError(
            f"-o is {options.output}, expected a name that ends in .npz: outputs are written as an archive of NumPy's"
        )
    target = None if options.output is None else Output(options.output, ARRAYS)
    model = load(folder, mapped=not options.in_memory)
    sizes = _parse_sizes(options.size)
    initial_state = draw_state(model.summary, sizes) if any(one.grows in sizes for one in model.summary.state) else {}
    if initial_state:
        model.state = initial_state
    given_arrays = options.arrays()
    for index, (array, summary) in enumerate(zip(given_arrays, model.summary.inputs, strict=False)):
        given_arrays[index] = _to_bfloat16(array) if summary.dtype == "bfloat16" else array
    arrays = given_arrays or model.random_inputs(sizes=sizes)
    result = model(*arrays)
    model.reset()  # timed runs begin with the same state as this call
    if initial_state:
        model.state = initial_state
    outputs = result if isinstance(result, tuple) else (result,)
    results: dict[str, Any] = {
        "outputs": [_describe(one.name, array) for one, array in zip(model.summary.outputs, outputs, strict=True)]
    }
    if target is not None:
        stream = io.BytesIO()
        saved = {one.name: _storage(one.name, array) for one, array in zip(model.summary.outputs, outputs, strict=True)}
        np.savez(stream, **saved)  # type: ignore[arg-type]
        target.write(mark_archive(stream.getvalue()))
    if options.benchmark:
        results["benchmark"] = model.benchmark(*arrays, runs=options.runs)
    measured = model.profile(*arrays) if options.profile else None
    if options.profile:
        from anatune.network.report import model_dict, model_lines

        results["profile"] = model_dict(model.summary, measured)
    if as_json:
        print_json(results)
        return
    from anatune.report import units
    from anatune.report.text import paragraph

    for described in results["outputs"]:
        shape = "x".join(map(str, described["shape"])) or "scalar"
        largest = "" if described["largest"] is None else f", largest magnitude {described['largest']:.6g}"
        print_text(f"{described['name']}: {shape} {described['dtype']}{largest}")
    if options.benchmark:
        times = results["benchmark"]
        print_text(
            f"median of {times['runs']} runs: {units.duration(times['median_s'])} (fastest "
            f"{units.duration(times['least_s'])}, slowest {units.duration(times['most_s'])}), "
            f"{units.threads(model.summary.threads)}"
        )
    if measured is not None:
        if options.benchmark:
            print_lines(paragraph(_times_text(results["benchmark"], measured, model.summary.predicted_s), line_width()))
        print_lines(model_lines(model.summary, measured, width=line_width()))


def _times_text(times: Mapping[str, float], measured: Mapping[str, float], predicted_s: float) -> str:
    """Return a sentence that relates the times of the benchmark, the profile and the prediction."""
    from anatune.report import units

    profile_s = sum(measured.values())
    whole = units.ratio(times["median_s"] / profile_s)
    return (
        "the median is the time of a whole run, with disturbances by other programs. The table below has the fastest "
        f"call of each function; their sum is {units.duration(profile_s)}, and the median is {whole} times that. The "
        f"prediction, {units.duration(predicted_s)}, is for the planned kernels alone on an idle machine"
    )


def _parse_sizes(words: list[str] | None) -> dict[str, int]:
    """Return the sizes given by ``--size``."""
    sizes = named_sizes(words)
    for name, word in sizes.items():
        if not word.isdecimal():
            raise UsageError(f"--size {name} is {word!r}, expected a number such as {name}=128")
    return {name: int(word) for name, word in sizes.items()}


def _describe(name: str, output: object) -> dict[str, object]:
    """Return the description of an output; outputs of a divided model may be text or sequences."""
    import numpy as np

    if not isinstance(output, np.ndarray):
        return {"name": name, "dtype": type(output).__name__, "shape": (), "largest": None}
    largest = None if output.dtype == object else float(np.abs(output).max(initial=0))
    return {"name": name, "dtype": output.dtype.name, "shape": output.shape, "largest": largest}


def _storage(name: str, output: object) -> NDArray[np.generic]:
    """Return an output as a .npz file can store it; UsageError if it cannot."""
    import numpy as np

    if not isinstance(output, np.ndarray):
        raise UsageError(f"-o: output {name} is a {type(output).__name__}, expected arrays; call the model from Python")
    if output.dtype.name == "bfloat16":
        return output.astype(np.float32)  # NumPy's files have no bfloat16
    return output.astype(str) if output.dtype == object else output


def _to_bfloat16(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return float32 numbers, or raw pairs of bytes, as bfloat16, which NumPy's files do not have."""
    from anatune.measure.run.correctness import array_dtype

    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return array.view(array_dtype("bfloat16"))
    return array.astype(array_dtype("bfloat16")) if array.dtype.name == "float32" else array


def _read_array(path: Path) -> NDArray[np.generic]:
    """Return the array in a .npy file.

    Raises
    ------
    UsageError
        The file is no .npy file.
    """
    import numpy as np

    from anatune.files import open_file

    try:
        with open_file(path, None) as stream:
            array: NDArray[np.generic] = np.load(stream, allow_pickle=False)
            return array
    except (ValueError, EOFError) as error:
        raise UsageError(f"--input {path}: {error}; expected a file that numpy.save wrote") from None
