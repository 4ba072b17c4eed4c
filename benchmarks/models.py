"""The models whose training steps are timed: those of the tests, a ResNet and a GPT.

Each is made at its full size or tiny, and trains on one batch that lies on the device.
"""

import math
import sys
from collections.abc import Callable

import torch
from provenance import ROOT
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.append(str(ROOT))
from tests.models.steps import (
    CRNN,
    DeepLabHead,
    GraphNetwork,
    Recommender,
    SpatialTransformer,
    Training,
    UNet3d,
)


class Make:
    """Makes the batch on a device.

    Args:
        device: the tensors' device.
        tiny: whether of two sizes the small one is taken.
    """

    def __init__(self, device: torch.device, tiny: bool) -> None:
        self.device = device
        self.tiny = tiny
        self._generator = torch.Generator().manual_seed(0)

    def size(self, full: int, tiny: int) -> int:
        """The size that is asked for."""
        return tiny if self.tiny else full

    def normal(self, *shape: int) -> Tensor:
        """Standard normal values."""
        return torch.randn(shape, generator=self._generator, device="cpu").to(self.device)

    def integers(self, below: int, *shape: int) -> Tensor:
        """Integers from 0."""
        return torch.randint(below, shape, generator=self._generator, device="cpu").to(self.device)


def deeplab(make: Make) -> Training:
    """Segmentation of images."""
    n, height, width = make.size(8, 1), make.size(513, 19), make.size(513, 23)
    model = DeepLabHead(21, make.size(64, 8)).to(make.device)
    images, target = make.normal(n, 3, height, width), make.integers(21, n, height, width)
    weight = make.normal(21).exp()
    return Training(model, lambda: F.cross_entropy(model(images), target, weight, ignore_index=0))


def unet3d(make: Make) -> Training:
    """Segmentation of volumes."""
    shape = (make.size(64, 5), make.size(128, 8), make.size(128, 7))
    model = UNet3d(3, make.size(32, 4)).to(make.device)
    volumes, target = make.normal(2, 1, *shape), make.integers(3, 2, *shape)
    return Training(model, lambda: F.cross_entropy(model(volumes), target))


def spatial_transformer(make: Make) -> Training:
    """Classification of warped images."""
    n, side = make.size(256, 3), make.size(128, 13)
    model = SpatialTransformer().to(make.device)
    images, target = make.normal(n, 1, side, side), make.integers(4, n)
    return Training(model, lambda: F.cross_entropy(model(images), target))


def crnn(make: Make) -> Training:
    """Transcription."""
    n, width, classes = make.size(64, 4), make.size(256, 12), make.size(96, 6)
    model = CRNN(classes, make.size(256, 8)).to(make.device)
    images = make.normal(n, 1, make.size(32, 6), width)
    texts = make.integers(classes - 1, n, width // 3) + 1
    lengths = ((width,) * n, (width // 3,) * n)
    criterion = nn.CTCLoss(zero_infinity=True)
    return Training(model, lambda: criterion(model(images), texts, *lengths))


def graph_network(make: Make) -> Training:
    """Regression of graphs."""
    graphs, nodes, features = make.size(64, 3), make.size(512, 7), make.size(64, 6)
    model = GraphNetwork(features, make.size(64, 8), graphs).to(make.device)
    graph = torch.arange(graphs).repeat_interleave(nodes).to(make.device)
    states = make.normal(graphs * nodes, features)
    edges = make.integers(graphs * nodes, 2, make.size(1 << 19, 150))
    target = make.normal(graphs, 1)

    def loss() -> Tensor:
        # The model makes its start of a product itself, on the default device.
        with make.device:
            return F.mse_loss(model(states, edges, graph), target)

    return Training(model, loss)


def recommender(make: Make) -> Training:
    """Click prediction."""
    n, items, users = make.size(8192, 24), make.size(100_000, 40), make.size(50_000, 9)
    model = Recommender(items, users, make.size(64, 8)).to(make.device)
    bags, weights = make.integers(items, n, make.size(20, 6)), make.normal(n, make.size(20, 6))
    who, clicks = make.integers(users, n), make.integers(2, n).float()
    return Training(
        model, lambda: F.binary_cross_entropy_with_logits(model(bags, weights, who), clicks)
    )


class Bottleneck(nn.Module):
    """Three convolutions around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        layers = ((channels, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        self.layers = nn.Sequential(*(self._convolution(*layer) for layer in layers))
        self.shortcut = nn.Identity()
        if stride != 1 or channels != 4 * width:
            self.shortcut = self._convolution(channels, 4 * width, 1, stride)

    @staticmethod
    def _convolution(channels: int, width: int, side: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels, width, side, stride, side // 2, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + self.shortcut(x)


def resnet50(make: Make) -> Training:
    """Classification of images: the depths and widths of ResNet-50."""
    n, side, width = make.size(64, 2), make.size(224, 33), make.size(64, 4)
    depths = (1, 1, 1, 1) if make.tiny else (3, 4, 6, 3)
    blocks: list[nn.Module] = []
    channels = width
    for stage, depth in enumerate(depths):
        for number in range(depth):
            stride = 2 if stage and not number else 1
            blocks.append(Bottleneck(channels, width << stage, stride))
            channels = 4 * width << stage
    model = nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 1000),
    ).to(make.device)
    images, target = make.normal(n, 3, side, side), make.integers(1000, n)
    return Training(model, lambda: F.cross_entropy(model(images), target))


class GPT(nn.Module):
    """Maps tokens (N, T) to logits (N, T, vocabulary)."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(width)
        self.blocks = nn.TransformerEncoder(block, depth, norm, enable_nested_tensor=False)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.places.weight[:length]
        x = self.blocks(x, self.mask[:length, :length], is_causal=True)
        return x @ self.tokens.weight.T / math.sqrt(x.shape[-1])


def gpt(make: Make) -> Training:
    """Prediction of the next token: the sizes of GPT-2."""
    n, length, vocabulary = make.size(8, 2), make.size(1024, 9), make.size(50_257, 30)
    width, heads, depth = make.size(768, 8), make.size(12, 2), make.size(12, 1)
    model = GPT(vocabulary, length, width, heads, depth).to(make.device)
    tokens = make.integers(vocabulary, n, length + 1)

    def loss() -> Tensor:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return Training(model, loss)


def gpt_bfloat16(make: Make) -> Training:
    """The same under autocast."""
    training = gpt(make)

    def loss() -> Tensor:
        with torch.autocast(make.device.type, torch.bfloat16):
            return training.loss()

    return Training(training.model, loss)


MODELS: dict[str, Callable[[Make], Training]] = {
    make.__name__: make
    for make in (
        *(deeplab, unet3d, spatial_transformer, crnn, graph_network, recommender),
        *(resnet50, gpt, gpt_bfloat16),
    )
}
