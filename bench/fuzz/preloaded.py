"""What the server of processes imports once, so that each new worker begins with it."""

import importlib
import importlib.util

for _name in ("numpy", "onnx", "onnx.reference", "anatune", "bench.fuzz.onnx.cases", "bench.fuzz.torch.cases"):
    if importlib.util.find_spec(_name.partition(".")[0]) is not None:
        try:
            importlib.import_module(_name)
        except ImportError:
            continue
