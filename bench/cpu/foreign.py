"""Models of others, small: tiny configurations of torchvision and transformers, and some written by hand.

Each keeps the operators of what it stands for, with few layers and narrow ones. `FOREIGN` has makers: torch ->
(module, inputs).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from bench.cpu.networks import Network

__all__ = ["FOREIGN", "foreign"]

Maker = Callable[[Any], tuple[Any, tuple[Any, ...]]]


def _vision(name: str, size: int = 64, **options: Any) -> Maker:
    """Return a maker of a model of torchvision's for images of a size."""

    def make(torch: Any) -> tuple[Any, tuple[Any, ...]]:
        import torchvision

        place, _, word = name.rpartition(".")
        if not place:
            return getattr(torchvision.models, word)(weights=None, **options), (torch.randn(1, 3, size, size),)

        class Out(torch.nn.Module):  # type: ignore[misc,name-defined]
            """The result that segmentation models call "out"."""

            def __init__(self) -> None:
                super().__init__()
                made = getattr(getattr(torchvision.models, place), word)
                self.model = made(weights=None, weights_backbone=None, **options)

            def forward(self, x: Any) -> Any:
                return self.model(x)["out"]

        return Out(), (torch.randn(1, 3, size, size),)

    return make


def _transformer(kind: str, head: str = "Model", inputs: str = "tokens", result: int = 0, **options: Any) -> Maker:
    """Return a maker of a model of transformers'; `inputs`: "tokens", "image", "sound" or "pair"."""

    def make(torch: Any) -> tuple[Any, tuple[Any, ...]]:
        import transformers

        config = getattr(transformers, f"{kind}Config")(**options)
        if hasattr(config, "use_cache"):
            config.use_cache = False

        class First(torch.nn.Module):  # type: ignore[misc,name-defined]
            """The first tensor of what the model returns."""

            def __init__(self) -> None:
                super().__init__()
                self.model = getattr(transformers, f"{kind}{head}")(config)

            def forward(self, *given: Any) -> Any:
                named = {"decoder_input_ids": given[1]} if inputs == "pair" else {}
                return self.model(given[0], **named, return_dict=False)[result]

        tokens = torch.randint(3, 90, (1, 16))
        sizes = {
            "tokens": (tokens,),
            "pair": (tokens, torch.randint(3, 90, (1, 8))),
            "image": (torch.randn(1, 3, 32, 32),),
            "large": (torch.randn(1, 3, 64, 64),),
            "sound": (torch.randn(1, 4000),),
            "mel": (torch.randn(1, 80, 64),),
        }
        return First(), sizes[inputs]

    return make


_TEXT = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_DECODER = {**_TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64}
_IMAGE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
_SOUND = {**_TEXT, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 16,
          "num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 2}  # fmt: skip
_PAIR = {
    "vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
}  # fmt: skip


def _unet(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    nn = torch.nn

    def block(inputs: int, outputs: int) -> Any:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

    class UNet(nn.Module):  # type: ignore[misc,name-defined]
        """Two levels, transposed convolutions on the way up."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.low = block(3, 16), block(16, 32), block(32, 64)
            self.up_second, self.up_first = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 4, 2, 1)
            self.last_second, self.last = block(64, 32), nn.Conv2d(32, 4, 1)

        def forward(self, x: Any) -> Any:
            first = self.first(x)
            second = self.second(nn.functional.max_pool2d(first, 2))
            low = self.low(nn.functional.max_pool2d(second, 2))
            up = self.last_second(torch.cat([second, self.up_second(low)], 1))
            return self.last(torch.cat([first, self.up_first(up)], 1))

    return UNet(), (torch.randn(1, 3, 64, 64),)


def _diffusion(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    nn = torch.nn

    class Residual(nn.Module):  # type: ignore[misc,name-defined]
        """Group norms, SiLU, a time step."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2))
            self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
            self.time = nn.Linear(32, width)

        def forward(self, x: Any, time: Any) -> Any:
            inner = self.convolutions[0](nn.functional.silu(self.norms[0](x))) + self.time(time)[:, :, None, None]
            return x + self.convolutions[1](nn.functional.silu(self.norms[1](inner)))

    class Diffusion(nn.Module):  # type: ignore[misc,name-defined]
        """Down, attention, up by nearest neighbours and by a transposed convolution."""

        def __init__(self) -> None:
            super().__init__()
            self.inside, self.outside = nn.Conv2d(4, 32, 3, padding=1), nn.Conv2d(32, 4, 3, padding=1)
            self.blocks = nn.ModuleList(Residual(32) for _ in range(3))
            self.down, self.up = nn.Conv2d(32, 32, 3, 2, 1), nn.ConvTranspose2d(32, 32, 4, 2, 1)
            self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

        def forward(self, x: Any, step: Any) -> Any:
            angles = step[:, None].float() * torch.exp(-torch.arange(16) / 16 * 9.2)[None]
            time = torch.cat([angles.sin(), angles.cos()], 1)
            first = self.blocks[0](self.inside(x), time)
            low = self.blocks[1](self.down(first), time)
            rows = low.flatten(2).transpose(1, 2)
            rows = rows + self.attention(rows, rows, rows, need_weights=False)[0]
            low = rows.transpose(1, 2).reshape(low.shape)
            up = self.up(low) + nn.functional.interpolate(low, scale_factor=2.0, mode="nearest")
            return self.outside(self.blocks[2](first + up, time))

    return Diffusion(), (torch.randn(1, 4, 32, 32), torch.tensor([7]))


def _dlrm(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    nn = torch.nn

    class Dlrm(nn.Module):  # type: ignore[misc,name-defined]
        """Bags of embeddings, dense features, products of all pairs."""

        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(50, 16, mode="sum") for _ in range(4))
            self.dense = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
            self.top = nn.Sequential(nn.Linear(26, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())

        def forward(self, x: Any, ids: Any) -> Any:
            dense = self.dense(x)
            rows = torch.stack([dense, *(bag(ids[:, place]) for place, bag in enumerate(self.bags))], 1)
            pairs = torch.bmm(rows, rows.transpose(1, 2))
            i, j = torch.tril_indices(5, 5, offset=-1)
            return self.top(torch.cat([dense, pairs[:, i, j]], 1))

    return Dlrm(), (torch.randn(8, 13), torch.randint(0, 50, (8, 4, 3)))


def _recurrent(kind: str, **options: Any) -> Maker:
    def make(torch: Any) -> tuple[Any, tuple[Any, ...]]:
        class Last(torch.nn.Module):  # type: ignore[misc,name-defined]
            """The results of all steps."""

            def __init__(self) -> None:
                super().__init__()
                self.steps = getattr(torch.nn, kind)(24, 32, batch_first=True, **options)

            def forward(self, x: Any) -> Any:
                return self.steps(x)[0]

        return Last(), (torch.randn(1, 12, 24),)

    return make


def _sequential(build: Callable[[Any], list[Any]], *shape: int) -> Maker:
    return lambda torch: (torch.nn.Sequential(*build(torch.nn)), (torch.randn(*shape),))


def _experts(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    nn = torch.nn

    class Experts(nn.Module):  # type: ignore[misc,name-defined]
        """Two of four experts a token, all computed, weighed by a softmax over the largest two."""

        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(32, 4, bias=False)
            self.up, self.down = nn.Parameter(torch.randn(4, 32, 64) / 6), nn.Parameter(torch.randn(4, 64, 32) / 8)

        def forward(self, x: Any) -> Any:
            share, places = self.gate(x).softmax(-1).topk(2)
            weights = torch.zeros(x.shape[0], 4).scatter(1, places, share / share.sum(-1, keepdim=True))
            inner = nn.functional.silu(torch.einsum("td,edf->etf", x, self.up))
            return torch.einsum("etd,te->td", torch.einsum("etf,efd->etd", inner, self.down), weights)

    return Experts(), (torch.randn(16, 32),)


def _graph(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    nn = torch.nn

    class Graph(nn.Module):  # type: ignore[misc,name-defined]
        """Messages along edges, summed where they arrive."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: Any, edges: Any) -> Any:
            for layer in (self.first, self.second):
                x = layer(x)
                x = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]).relu()
            return x

    return Graph(), (torch.randn(20, 8), torch.randint(0, 20, (2, 60)))


def _video(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    import torchvision

    return torchvision.models.video.r3d_18(weights=None), (torch.randn(1, 3, 4, 32, 32),)


def _whisper(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    import transformers

    own = {key: value for key, value in _PAIR.items() if key != "max_position_embeddings"}
    config = transformers.WhisperConfig(**own, max_source_positions=32, max_target_positions=64, pad_token_id=0)
    encoder = transformers.WhisperModel(config).encoder

    class Encoder(torch.nn.Module):  # type: ignore[misc,name-defined]
        """What the encoder hears."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, x: Any) -> Any:
            return self.encoder(x, return_dict=False)[0]

    return Encoder(), (torch.randn(1, 80, 64),)


FOREIGN: dict[str, Maker] = {
    **{
        name: _vision(name)
        for name in (
            "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "mnasnet0_5", "mobilenet_v3_small",
            "regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "vgg11",
        )
    },
    "googlenet": _vision("googlenet", init_weights=False),
    "vit_b_16": _vision("vit_b_16", 32, image_size=32),
    "deeplabv3": _vision("segmentation.deeplabv3_mobilenet_v3_large"),
    "lraspp": _vision("segmentation.lraspp_mobilenet_v3_large"),
    "fcn": _vision("segmentation.fcn_resnet50"),
    "albert": _transformer("Albert", **_TEXT, embedding_size=16),
    "bart": _transformer("Bart", inputs="pair", **_PAIR),
    "bert": _transformer("Bert", **_TEXT),
    "bloom": _transformer("Bloom", vocab_size=96, hidden_size=32, n_layer=2, n_head=4),
    "deberta": _transformer("DebertaV2", **_TEXT, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "distilbert": _transformer("DistilBert", vocab_size=96, dim=32, n_layers=2, n_heads=4, hidden_dim=64),
    "electra": _transformer("Electra", **_TEXT, embedding_size=16),
    "falcon": _transformer("Falcon", vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
    "gemma": _transformer("Gemma", **_DECODER, head_dim=8),
    "gpt2": _transformer("GPT2", vocab_size=96, n_embd=32, n_layer=2, n_head=4),
    "gpt_neox": _transformer("GPTNeoX", **_TEXT, max_position_embeddings=64),
    "llama": _transformer("Llama", **_DECODER),
    "mamba": _transformer("Mamba", vocab_size=96, hidden_size=32, num_hidden_layers=2, state_size=8),
    "mistral": _transformer("Mistral", **_DECODER, sliding_window=8),
    "mixtral": _transformer("Mixtral", **_DECODER, num_local_experts=4),
    "opt": _transformer(
        "OPT", vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
        word_embed_proj_dim=32, max_position_embeddings=64,
    ),
    "phi": _transformer("Phi", **_TEXT, max_position_embeddings=64),
    "qwen2": _transformer("Qwen2", **_DECODER),
    "roberta": _transformer("Roberta", **_TEXT),
    "t5": _transformer("T5", inputs="pair", vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
    "xlnet": _transformer("XLNet", vocab_size=96, d_model=32, n_layer=2, n_head=4, d_inner=64),
    "beit": _transformer("Beit", inputs="image", **_IMAGE),
    "clip_vision": _transformer("CLIPVision", inputs="image", **_IMAGE),
    "deit": _transformer("DeiT", inputs="image", **_IMAGE),
    "dinov2": _transformer("Dinov2", inputs="image", **{k: v for k, v in _IMAGE.items() if k != "intermediate_size"}),
    "mobilevit": _transformer("MobileViT", inputs="large", image_size=64, hidden_sizes=[16, 24, 32]),
    "segformer": _transformer(
        "Segformer", "ForSemanticSegmentation", inputs="large", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
        decoder_hidden_size=32,
    ),
    "swinv2": _transformer("Swinv2", inputs="large", image_size=64, embed_dim=16, depths=[1, 1], num_heads=[2, 2],
                           window_size=4),
    "yolos": _transformer("Yolos", "ForObjectDetection", inputs="image", **{**_IMAGE, "image_size": [32, 32]}),
    "hubert": _transformer("Hubert", inputs="sound", **_SOUND),
    "wav2vec2": _transformer("Wav2Vec2", inputs="sound", **_SOUND),
    "autoencoder": _sequential(
        lambda nn: [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(),
                    nn.ConvTranspose2d(16, 8, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid()],
        1, 1, 28, 28,
    ),
    "bilstm": _recurrent("LSTM", num_layers=2, bidirectional=True),
    "diffusion_unet": _diffusion,
    "dlrm": _dlrm,
    "experts": _experts,
    "graph_network": _graph,
    "gru": _recurrent("GRU"),
    "lstm": _recurrent("LSTM"),
    "super_resolution": _sequential(
        lambda nn: [nn.Conv2d(1, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 9, 3, padding=1), nn.PixelShuffle(3)],
        1, 1, 32, 32,
    ),
    "r3d": _video,
    "unet": _unet,
    "whisper": _whisper,
    "wavenet": _sequential(
        lambda nn: [layer for step in (1, 2, 4, 8) for layer in (nn.ConstantPad1d((step, 0), 0.0),
                    nn.Conv1d(16, 16, 2, dilation=step), nn.GLU(1) if step == 8 else nn.Tanh())],
        1, 16, 64,
    ),
}  # fmt: skip


@functools.cache
def foreign(torch: Any, name: str) -> Network:
    """Return a model of `FOREIGN`, in evaluation mode, with random weights and inputs of a fixed seed."""
    torch.manual_seed(0)
    with torch.no_grad():
        module, inputs = FOREIGN[name](torch)
        module = module.eval()
        for one in module.modules():
            if isinstance(one, torch.nn.modules.batchnorm._BatchNorm):
                one.running_mean.normal_(0, 0.1)
                one.running_var.uniform_(0.5, 1.5)
        for weight in module.parameters():
            if weight.dim() > 1 and not weight.any():
                weight.normal_(0, 0.1)  # the head of a ViT of torchvision's: all results would be 0
    return Network(name, module, inputs)
