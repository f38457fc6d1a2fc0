"""Whole models to compile and time: torchvision's and transformers' usual ones, random weights, float32, batch 1."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["NETWORKS", "Network", "import_with_torchvision", "network", "onnx_file", "quantised_file"]

TOKENS = 128
"""Of the language models' inputs."""
_OPERATORS = ("nms", "qnms")
"""Operators of torchvision that must exist when it is imported; a build for another PyTorch does not have them."""


class Network(NamedTuple):
    """A model and an input for it; both are the same in every process."""

    name: str
    module: Any
    example: Any


def import_with_torchvision(torch: Any, name: str) -> Any:
    """Import torchvision, or a package that imports it, also where its compiled part was built for another PyTorch."""
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")  # undefined again when it is freed
        for operator in _OPERATORS:
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return importlib.import_module(name)


def _image(torch: Any, name: str, size: int = 224, **options: Any) -> tuple[Any, Any]:
    module = getattr(import_with_torchvision(torch, "torchvision").models, name)(weights=None, **options).eval()
    for one in module.modules():
        if isinstance(one, torch.nn.BatchNorm2d):  # fresh ones are the identity, which compilers might see
            one.running_mean.normal_(0, 0.1)
            one.running_var.uniform_(0.5, 1.5)
        elif isinstance(one, torch.nn.Linear) and not one.weight.any():  # ViT's last one, whose results are zeros then
            one.weight.normal_(0, 0.02)
    return module, torch.randn(1, 3, size, size)


def _text(torch: Any, kind: str, **options: Any) -> tuple[Any, Any]:
    with suppress(ImportError):  # transformers imports it where it is installed
        import_with_torchvision(torch, "torchvision")
    import transformers

    config = getattr(transformers, f"{kind}Config")(**options)

    class LastHidden(torch.nn.Module):  # type: ignore[misc,name-defined]
        """The model's last hidden state, a tensor: exporters differ in what they make of structures."""

        def __init__(self) -> None:
            super().__init__()
            self.model = getattr(transformers, f"{kind}Model")(config)

        def forward(self, tokens: Any) -> Any:
            return self.model(tokens).last_hidden_state

    return LastHidden().eval(), torch.randint(0, config.vocab_size, (1, TOKENS))


NETWORKS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "resnet18": lambda torch: _image(torch, "resnet18"),
    "resnet50": lambda torch: _image(torch, "resnet50"),
    "vgg16": lambda torch: _image(torch, "vgg16"),
    "mobilenet_v2": lambda torch: _image(torch, "mobilenet_v2"),
    "inception_v3": lambda torch: _image(torch, "inception_v3", 299, init_weights=False),
    "bert_base": lambda torch: _text(torch, "Bert"),
    "gpt2": lambda torch: _text(torch, "GPT2", use_cache=False),
    "vit_b_16": lambda torch: _image(torch, "vit_b_16"),
    "squeezenet1_1": lambda torch: _image(torch, "squeezenet1_1"),
    "densenet121": lambda torch: _image(torch, "densenet121"),
    "resnext50_32x4d": lambda torch: _image(torch, "resnext50_32x4d"),
    "distilbert": lambda torch: _text(torch, "DistilBert"),
}


def network(torch: Any, name: str) -> Network:
    """Return a model of `NETWORKS`, in evaluation mode, with random weights and input of a fixed seed."""
    torch.manual_seed(0)
    with torch.no_grad():
        module, example = NETWORKS[name](torch)
    return Network(name, module, example)


def onnx_file(torch: Any, made: Network, folder: Path) -> Path:
    """Return the model as an ONNX file in `folder`, which is written once."""
    path = folder / f"{made.name}.onnx"
    if not path.exists():
        part = path.with_suffix(".part")
        with torch.no_grad():
            torch.onnx.export(made.module, (made.example,), str(part), external_data=False, verbose=False)
        part.replace(path)
    return path


def quantised_file(torch: Any, made: Network, folder: Path) -> Path:
    """Return the ONNX file with products of 8-bit integers (QDQ, a scale for each channel), as onnxruntime makes it."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        """The example, and others like it."""

        def __init__(self) -> None:
            example = made.example
            more = torch.randn_like(example) if example.is_floating_point() else torch.randint_like(example, 1000)
            self.left = [example.numpy(), more.numpy()]

        def get_next(self) -> dict[str, Any] | None:
            return {name: self.left.pop()} if self.left else None

    plain, path = onnx_file(torch, made, folder), folder / f"{made.name}-int8.onnx"
    if not path.exists():
        import onnx

        name = onnx.load(plain).graph.input[0].name
        part = path.with_suffix(".part")
        quantize_static(
            str(plain), str(part), Samples(), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
        part.replace(path)
    return path
