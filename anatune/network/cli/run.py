"""``anatune run``: a compiled model on given or random inputs, or timed."""

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
    """What a model runs on, and what is said of that."""

    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", metavar="FILE", help="A .npy file, once for each input, in order; none: random inputs."
        ),
    ] = None
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="NAME=N",
            help="Of random inputs and states a size that varies, once for each.  [default: as planned, nothing held]",
            show_default=False,
        ),
    ] = None
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the outputs: a .npz file.")
    ] = None
    benchmark: Annotated[bool, typer.Option("--benchmark", help="Time it: median and spread of several runs.")] = False
    profile: Annotated[bool, typer.Option("--profile", help="Say the time of each kernel.")] = False
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=1, help="Runs to time.")] = 30
    in_memory: Annotated[
        bool,
        typer.Option(
            "--in-memory", help="Read the weights at once, do not map their file: a later start, faster runs."
        ),
    ] = False

    def arrays(self) -> list[NDArray[np.generic]]:
        """Return the given inputs; none: there are none."""
        if self.inputs and self.size:
            raise UsageError("--size is for random inputs, and --input names files; leave one of them out")
        return [_array(path) for path in self.inputs or ()]


@spread
def run_model(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `anatune compile` wrote.")],
    asked: RunOptions,
    as_json: AsJson = False,
) -> None:
    """Run a compiled model. Of what compiled it the extra tvm alone is needed, for TVM's runtime."""
    import io

    import numpy as np

    from anatune.cli.outputs import ARRAYS, marked
    from anatune.files import Output
    from anatune.network.compiling.compiled import draw_state
    from anatune.network.compiling.divided import load

    if asked.output is not None and asked.output.suffix != ".npz" and not asked.output.is_char_device():
        raise UsageError(
            f"-o is {asked.output}, expected a name that ends in .npz: outputs are written as an archive of NumPy's"
        )
    target = None if asked.output is None else Output(asked.output, ARRAYS)
    model = load(folder, mapped=not asked.in_memory)
    sizes = _numbers(asked.size)
    held = draw_state(model.summary, sizes) if any(one.grows in sizes for one in model.summary.state) else {}
    if held:
        model.state = held
    given = asked.arrays()
    for place, (array, one) in enumerate(zip(given, model.summary.inputs, strict=False)):
        given[place] = _bfloat16(array) if one.dtype == "bfloat16" else array
    arrays = given or model.random_inputs(sizes=sizes)
    result = model(*arrays)
    model.reset()  # what is timed begins where this call did
    if held:
        model.state = held
    outputs = result if isinstance(result, tuple) else (result,)
    answer: dict[str, Any] = {
        "outputs": [_described(one.name, array) for one, array in zip(model.summary.outputs, outputs, strict=True)]
    }
    if target is not None:
        stream = io.BytesIO()
        kept = {one.name: _kept(one.name, array) for one, array in zip(model.summary.outputs, outputs, strict=True)}
        np.savez(stream, **kept)  # type: ignore[arg-type]
        target.write(marked(stream.getvalue()))
    if asked.benchmark:
        answer["benchmark"] = model.benchmark(*arrays, runs=asked.runs)
    measured = model.profile(*arrays) if asked.profile else None
    if asked.profile:
        from anatune.network.report import model_dict, model_lines

        answer["profile"] = model_dict(model.summary, measured)
    if as_json:
        print_json(answer)
        return
    from anatune.report import units
    from anatune.report.text import paragraph

    for described in answer["outputs"]:
        shape = "x".join(map(str, described["shape"])) or "scalar"
        largest = "" if described["largest"] is None else f", largest magnitude {described['largest']:.6g}"
        print_text(f"{described['name']}: {shape} {described['dtype']}{largest}")
    if asked.benchmark:
        times = answer["benchmark"]
        print_text(
            f"median of {times['runs']} runs: {units.duration(times['median_s'])} (fastest "
            f"{units.duration(times['least_s'])}, slowest {units.duration(times['most_s'])}), "
            f"{units.threads(model.summary.threads)}"
        )
    if measured is not None:
        if asked.benchmark:
            print_lines(paragraph(_times_text(answer["benchmark"], measured, model.summary.predicted_s), line_width()))
        print_lines(model_lines(model.summary, measured, width=line_width()))


def _times_text(times: Mapping[str, float], measured: Mapping[str, float], predicted_s: float) -> str:
    """Return what the times of a benchmark, of a profile and of a plan are, each over the one before it."""
    from anatune.report import units

    profile_s = sum(measured.values())
    whole = units.ratio(times["median_s"] / profile_s)
    return (
        "the median is of whole runs, whatever else the machine did. Below each function's fastest run counts, "
        f"{units.duration(profile_s)} in all: the median is {whole} times that. The prediction, "
        f"{units.duration(predicted_s)}, is of planned kernels alone on an idle machine"
    )


def _numbers(words: list[str] | None) -> dict[str, int]:
    """Return the sizes that ``--size`` names."""
    sizes = named_sizes(words)
    for name, word in sizes.items():
        if not word.isdecimal():
            raise UsageError(f"--size {name} is {word!r}, expected a number such as {name}=128")
    return {name: int(word) for name, word in sizes.items()}


def _described(name: str, output: object) -> dict[str, object]:
    """Return what is said of an output; of a divided model it may be text, or a sequence."""
    import numpy as np

    if not isinstance(output, np.ndarray):
        return {"name": name, "dtype": type(output).__name__, "shape": (), "largest": None}
    largest = None if output.dtype == object else float(np.abs(output).max(initial=0))
    return {"name": name, "dtype": output.dtype.name, "shape": output.shape, "largest": largest}


def _kept(name: str, output: object) -> NDArray[np.generic]:
    """Return an output as a .npz file can hold it; UsageError: it is none that can be."""
    import numpy as np

    if not isinstance(output, np.ndarray):
        raise UsageError(f"-o: output {name} is a {type(output).__name__}, expected arrays; call the model from Python")
    if output.dtype.name == "bfloat16":
        return output.astype(np.float32)  # what NumPy's files have
    return output.astype(str) if output.dtype == object else output


def _bfloat16(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return float32 numbers, which stand for bfloat16 in NumPy's files, or two bytes that are some, as bfloat16."""
    from anatune.measure.run.correctness import array_dtype

    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return array.view(array_dtype("bfloat16"))
    return array.astype(array_dtype("bfloat16")) if array.dtype.name == "float32" else array


def _array(path: Path) -> NDArray[np.generic]:
    """Return the array of a .npy file.

    Raises
    ------
    UsageError
        It is none.
    """
    import numpy as np

    from anatune.files import open_file

    try:
        with open_file(path, None) as stream:
            array: NDArray[np.generic] = np.load(stream, allow_pickle=False)
            return array
    except (ValueError, EOFError) as error:
        raise UsageError(f"--input {path}: {error}; expected what numpy.save wrote") from None
