"""torchvision's and transformers' own models in small: as modules, exported programs and ONNX files.

`test_session_models.py` has the same seven written by hand, for machines without PyTorch.
"""

import copy

import numpy as np
import pytest

from anatune.network.compiling.session import compile as compile_model
from tests.unit.network.compiling.models import difference

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

TOLERANCE = 1e-4
"""Of the largest magnitude, beside float64."""


def vision(make, size):
    """Return a model with norms that are not trivial, and an image."""
    models = pytest.importorskip("torchvision").models
    torch.manual_seed(0)
    module = make(models).eval()
    for one in module.modules():
        if isinstance(one, torch.nn.BatchNorm2d):
            one.running_mean.normal_(0, 0.1)
            one.running_var.uniform_(0.5, 1.5)
    return module, torch.randn(1, 3, size, size)


def inception(models):
    parts = models.inception
    return torch.nn.Sequential(
        parts.BasicConv2d(3, 16, kernel_size=3, stride=2),
        torch.nn.MaxPool2d(3, 2),
        parts.InceptionA(16, pool_features=8),
        parts.InceptionB(232),
        parts.InceptionC(712, channels_7x7=16),
        parts.InceptionD(768),
        parts.InceptionE(1280),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(2048, 10),
    )


def language(kind, **options):
    """Return a model of `transformers`, without a cache, and tokens."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    try:  # its parts are imported when they are asked for, and import torchvision
        config_type, model_type = getattr(transformers, f"{kind}Config"), getattr(transformers, f"{kind}Model")
    except Exception as error:  # noqa: BLE001  whatever it is, the test cannot run
        pytest.skip(f"transformers has no {kind}: {error}")
    config = config_type(vocab_size=60, **options)

    class LastHidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model_type(config)

        def forward(self, tokens):
            return self.model(tokens).last_hidden_state

    return LastHidden().eval(), torch.randint(0, 60, (1, 12))


def resnet(models, block):
    return models.resnet.ResNet(getattr(models.resnet, block), [1, 1, 1, 1], num_classes=10)


def vgg(models):
    made = models.vgg.VGG(models.vgg.make_layers([8, "M", 16, 16, "M"]), num_classes=10, init_weights=False)
    made.avgpool = torch.nn.AdaptiveAvgPool2d(2)
    between = made.classifier[1:3]
    made.classifier = torch.nn.Sequential(torch.nn.Linear(64, 32), *between, torch.nn.Linear(32, 10))
    return made


def mobilenet(models):
    return models.mobilenetv2.MobileNetV2(10, inverted_residual_setting=[[1, 16, 1, 1], [6, 24, 2, 2]])


BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32, "use_cache": False}
MODELS = {
    "resnet18": lambda: vision(lambda models: resnet(models, "BasicBlock"), 32),
    "resnet50": lambda: vision(lambda models: resnet(models, "Bottleneck"), 32),
    "vgg16": lambda: vision(vgg, 16),
    "mobilenet_v2": lambda: vision(mobilenet, 32),
    "inception_v3": lambda: vision(inception, 63),
    "bert_base": lambda: language("Bert", **BERT),
    "gpt2": lambda: language("GPT2", **GPT),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    """A model, inputs that it is compiled with, others, and what float64 makes of these."""
    module, example = MODELS[request.param]()
    x = torch.randn(example.shape) if example.is_floating_point() else torch.randint(0, 60, example.shape)
    with torch.no_grad():
        want = copy.deepcopy(module).double()(x.double() if x.is_floating_point() else x)
    return module, example, x, want.numpy()


def close(compiled, x, want, reference):
    assert difference(compiled(x.numpy()), want) <= TOLERANCE
    assert compiled.summary.check.reference == f"{reference} in float64"
    assert compiled.summary.check.error <= 1e-5
    assert not compiled.summary.unscheduled


def test_modules(model):
    module, example, x, want = model
    close(compile_model(module, example, threads=1), x, want, "PyTorch")


def test_saved_programs(model, tmp_path):
    module, example, x, want = model
    path = tmp_path / "model.pt2"
    with torch.no_grad():
        torch.export.save(torch.export.export(module, (example,)), str(path))
    close(compile_model(path, threads=1), x, want, "PyTorch")


def test_onnx_files_of_pytorch(model, tmp_path):
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    module, example, x, want = model
    path = tmp_path / "model.onnx"
    with torch.no_grad():
        torch.onnx.export(module, (example,), str(path), external_data=False, verbose=False)
    compiled = compile_model(path, threads=1)
    close(compiled, x, want, "ONNX's reference evaluator")
    assert compiled(np.array(x)).dtype == np.float32
