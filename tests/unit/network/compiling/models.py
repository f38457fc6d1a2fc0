"""Small models: of PyTorch, which the tests that use them skip without, and of ONNX."""

import numpy as np


def residual_network():
    """Return a network such as ResNet, in evaluation mode, with statistics that are not trivial."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, channels, outputs, stride):
            super().__init__()
            self.first = nn.Conv2d(channels, outputs, 3, stride, 1, bias=False)
            self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
            self.shortcut = nn.Identity()
            if stride != 1:
                self.shortcut = nn.Sequential(
                    nn.Conv2d(channels, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
                )

        def forward(self, x):
            inner = torch.relu(self.norms[0](self.first(x)))
            return torch.relu(self.norms[1](self.second(inner)) + self.shortcut(x))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
            )
            self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2))
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.classifier = nn.Linear(32, 10)

        def forward(self, x):
            return self.classifier(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))

    torch.manual_seed(0)
    network = Network().eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return network, torch.randn(1, 3, 32, 32)


def transformer_block(tokens=8, *, is_causal=False):
    """Return one block such as BERT's, or GPT-2's, on token ids: it returns a tuple."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, width=32, heads=2):
            super().__init__()
            self.heads = heads
            self.embedding = nn.Embedding(50, width)
            self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, tokens):
            x = self.embedding(tokens)
            batch, count, width = x.shape

            def split(y):
                return y.view(batch, count, self.heads, width // self.heads).transpose(1, 2)

            y = functional.scaled_dot_product_attention(
                split(self.query(x)), split(self.key(x)), split(self.value(x)), is_causal=is_causal
            )
            x = self.norms[0](x + self.output(y.transpose(1, 2).reshape(batch, count, width)))
            return self.norms[1](x + self.down(functional.gelu(self.up(x)))), x

    torch.manual_seed(0)
    return Block().eval(), torch.randint(0, 50, (1, tokens))


def onnx_network(path, *, batch=1, operator="Relu"):
    """Write a convolution, an activation and a sum to `path` and return its weight; `batch` may be a name."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["data", "weight"], ["inner"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node(operator, ["inner"], ["rectified"]),
        helper.make_node("Add", ["rectified", "inner"], ["result"]),
    ]
    data = helper.make_tensor_value_info("data", TensorProto.FLOAT, [batch, 4, 8, 8])
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, [batch, 8, 8, 8])
    graph = helper.make_graph(nodes, "network", [data], [result], [numpy_helper.from_array(weight, "weight")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return weight


def difference(got, want):
    """Return the largest difference of two arrays over the largest magnitude of the second."""
    return np.abs(np.asarray(got, np.float64) - want).max() / np.abs(want).max()
