"""Six small models, each with a training step that PyTorch's flag makes raise on CUDA."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Step = Callable[[], Tensor]
"""One batch, forward and loss."""


@dataclass(frozen=True)
class Training:
    """A model with the loss of its next batch.

    Args:
        model: the model that is trained.
        loss: makes the next batch and gives the loss on it, a scalar.
    """

    model: nn.Module
    loss: Step


def generator(seed: int = 0) -> torch.Generator:
    """The data's own generator: dropout and initialisation do not move it."""
    return torch.Generator().manual_seed(seed)


def convolution(channels: int, width: int, dilation: int = 1, n: int = 2) -> nn.Sequential:
    """A convolution over n dimensions that keeps the size, its norm and a ReLU."""
    kind = nn.Conv3d if n == 3 else nn.Conv2d
    return nn.Sequential(
        kind(channels, width, 3, padding=dilation, dilation=dilation),
        nn.GroupNorm(2, width),
        nn.ReLU(),
    )


class DeepLabHead(nn.Module):
    """Atrous pyramid pooling over strided features, and a decoder with a skip.

    Maps (N, 3, H, W) to logits (N, classes, H, W).
    """

    def __init__(self, classes: int = 5, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU())
        self.backbone = nn.Sequential(nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU())
        self.pyramid = nn.ModuleList([convolution(width, width, rate) for rate in (1, 2, 3)])
        self.regions = nn.Sequential(nn.AdaptiveAvgPool2d(3), nn.Conv2d(width, width, 1), nn.ReLU())
        self.project = convolution(4 * width, width)
        self.decode = nn.Conv2d(2 * width, classes, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        low = self.stem(images)
        features = self.backbone(low)
        size = features.shape[-2:]
        regions = F.interpolate(self.regions(features), size, mode="bilinear", align_corners=False)
        branches = [branch(features) for branch in self.pyramid]
        whole = self.project(torch.cat([*branches, regions], 1))
        whole = F.interpolate(whole, low.shape[-2:], mode="bilinear", align_corners=False)
        logits = self.decode(torch.cat([low, whole], 1))
        return F.interpolate(logits, images.shape[-2:], mode="bicubic", align_corners=False)


def deeplab() -> Training:
    """Segmentation: cross entropy of pixels, class weights, some pixels ignored."""
    model, data = DeepLabHead(), generator()
    weight = torch.tensor([0.5, 1.0, 2.0, 1.0, 1.5])

    def loss() -> Tensor:
        images = torch.randn(2, 3, 19, 23, generator=data)
        target = torch.randint(0, 5, (2, 19, 23), generator=data)
        target[:, :2] = 255
        return F.cross_entropy(model(images), target, weight, ignore_index=255)

    return Training(model, loss)


class UNet3d(nn.Module):
    """One level down and up. Maps volumes (N, 1, T, H, W) to logits (N, classes, T, H, W)."""

    def __init__(self, classes: int = 3, width: int = 4) -> None:
        super().__init__()
        self.pad = nn.ReplicationPad3d(1)
        self.enter = nn.Conv3d(1, width, 3, padding=1)
        self.pool = nn.MaxPool3d(3, stride=2, padding=1)
        self.bottom = convolution(width, 2 * width, n=3)
        self.leave = convolution(3 * width, width, n=3)
        self.smooth = nn.AvgPool3d(3, stride=1, padding=1)
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, volumes: Tensor) -> Tensor:
        high = F.relu(self.enter(volumes))
        deep = self.bottom(self.pad(self.pool(high)))
        deep = F.interpolate(deep, high.shape[-3:], mode="trilinear", align_corners=True)
        return self.head(self.smooth(self.leave(torch.cat([high, deep], 1))))


def unet3d() -> Training:
    """Segmentation of volumes: cross entropy of voxels."""
    model, data = UNet3d(), generator()

    def loss() -> Tensor:
        volumes = torch.randn(2, 1, 5, 8, 7, generator=data)
        target = torch.randint(0, 3, (2, 5, 8, 7), generator=data)
        return F.cross_entropy(model(volumes), target, reduction="sum")

    return Training(model, loss)


class SpatialTransformer(nn.Module):
    """Finds an affine map, warps by it, classifies. Maps (N, 1, H, W) to logits (N, classes)."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.locate = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(3), nn.Flatten(), nn.Linear(36, 6)
        )
        self.refine = nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect")
        self.classify = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.ReLU(),
            nn.FractionalMaxPool2d(2, output_ratio=0.5),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Linear(36, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        straight = images.new_tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        theta = straight + 0.3 * self.locate(images).tanh().view(-1, 2, 3)
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        warped = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
        flow = grid + 0.1 * self.refine(warped).tanh().movedim(1, -1)
        return self.classify(F.grid_sample(warped, flow, mode="bicubic", align_corners=False))


def spatial_transformer() -> Training:
    """Classification of warped images."""
    model, data = SpatialTransformer(), generator()

    def loss() -> Tensor:
        images = torch.randn(3, 1, 13, 15, generator=data)
        return F.cross_entropy(model(images), torch.randint(0, 4, (3,), generator=data))

    return Training(model, loss)


class CRNN(nn.Module):
    """Columns of an image as a sequence. Maps (N, 1, H, W) to log-probabilities (W, N, classes)."""

    def __init__(self, classes: int = 6, width: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.columns = nn.AdaptiveMaxPool2d((1, None))
        self.sequence = nn.GRU(width, width, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        columns = self.columns(self.features(images)).squeeze(2).permute(2, 0, 1)
        return self.head(self.sequence(columns)[0]).log_softmax(2)


def crnn() -> Training:
    """Transcription: CTC with repeated labels, an empty text and one that is too long."""
    model, data = CRNN(), generator()
    criterion = nn.CTCLoss(zero_infinity=True)

    def loss() -> Tensor:
        images = torch.randn(4, 1, 6, 12, generator=data)
        texts = torch.randint(1, 6, (4, 7), generator=data)
        texts[1] = 2
        return criterion(model(images), texts, (12, 11, 9, 5), (4, 3, 0, 7))

    return Training(model, loss)


class GraphNetwork(nn.Module):
    """Messages along edges, gathered at nodes in several ways, then at graphs.

    Maps nodes (V, F), edges (2, E) and the graph of each node (V,) to (graphs, 1).
    """

    def __init__(self, features: int = 6, width: int = 8, graphs: int = 3) -> None:
        super().__init__()
        self.graphs = graphs
        self.message = nn.Linear(2 * features, width)
        self.gate = nn.Linear(width, 1)
        self.update = nn.Linear(3 * width + features, width)
        self.readout = nn.Linear(2 * width, 1)

    def forward(self, nodes: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        sources, targets = edges
        ends = torch.cat([nodes[sources], torch.index_select(nodes, 0, targets)], 1)
        messages = self.message(ends).relu()
        rows = targets[:, None].expand_as(messages)
        empty = messages.new_zeros(len(nodes), messages.shape[1])
        gates = self.gate(messages).sigmoid()
        # The chance that no edge fires: a product over the edges of a node.
        silence = torch.ones(len(nodes), 1).scatter_reduce(0, targets[:, None], 1 - gates, "prod")
        added = empty.index_add(0, targets, gates * messages)
        mean = empty.scatter_reduce(0, rows, messages, "mean", include_self=False)
        most = empty.index_reduce(0, targets, messages, "amax", include_self=False)
        state = self.update(torch.cat([nodes, added * silence, mean, most], 1)).relu()
        belongs = graph[:, None].expand_as(state)
        zeros = state.new_zeros(self.graphs, state.shape[1])
        total = zeros.scatter_add(0, belongs, state)
        middle = torch.stack([state[graph == g].median(0).values for g in range(self.graphs)])
        return self.readout(torch.cat([total, middle], 1))


def graph_network() -> Training:
    """Regression of graphs: many edges meet at few nodes."""
    model, data = GraphNetwork(), generator()
    graph = torch.arange(3).repeat_interleave(7)

    def loss() -> Tensor:
        nodes = torch.randn(21, 6, generator=data)
        edges = torch.randint(0, 21, (2, 150), generator=data)
        edges[1, 75:] = 4
        return F.mse_loss(model(nodes, edges, graph), torch.randn(3, 1, generator=data))

    return Training(model, loss)


class Recommender(nn.Module):
    """Bags of items and a user. Maps items (N, B), weights (N, B) and users (N,) to logits (N,)."""

    def __init__(self, items: int = 40, users: int = 9, width: int = 8) -> None:
        super().__init__()
        self.items = items
        self.strongest = nn.EmbeddingBag(items, width, mode="max", padding_idx=0)
        self.summed = nn.EmbeddingBag(items, width, mode="sum", padding_idx=0)
        self.user = nn.Embedding(users, width, scale_grad_by_freq=True)
        self.rank = nn.Sequential(nn.Linear(3 * width + 1, width), nn.ReLU(), nn.Linear(width, 1))
        self.register_buffer("last_seen", torch.zeros(items))

    def forward(self, bags: Tensor, weights: Tensor, users: Tensor) -> Tensor:
        share = torch.bincount(bags.flatten(), weights.flatten(), minlength=self.items)
        self.last_seen.put_(bags.flatten(), weights.flatten())
        heat = torch.take(torch.cumprod(1 - 0.01 * share, 0), bags[:, :1])
        summed = self.summed(bags, per_sample_weights=weights)
        return self.rank(torch.cat([self.strongest(bags), summed, self.user(users), heat], 1))[:, 0]


def recommender() -> Training:
    """Click prediction: few items are in most of the bags."""
    model, data = Recommender(), generator()

    def loss() -> Tensor:
        bags = torch.randint(0, 40, (24, 6), generator=data)
        bags[:, :3] = torch.randint(0, 3, (24, 3), generator=data)
        weights = torch.rand(24, 6, generator=data)
        users = torch.randint(0, 9, (24,), generator=data)
        clicks = torch.randint(0, 2, (24,), generator=data).float()
        return F.binary_cross_entropy_with_logits(model(bags, weights, users), clicks)

    return Training(model, loss)


TRAININGS: dict[str, tuple[Callable[[], Training], frozenset[str]]] = {
    "deeplab": (deeplab, frozenset({"upsample", "adaptive_avg_pool", "nll_loss2d"})),
    "unet3d": (
        unet3d,
        frozenset({"max_pool3d", "avg_pool3d", "upsample", "replication_pad", "nll_loss2d"}),
    ),
    "spatial_transformer": (
        spatial_transformer,
        frozenset({"grid_sampler", "adaptive_max_pool", "fractional_max_pool"}),
    ),
    "crnn": (crnn, frozenset({"ctc_loss", "adaptive_max_pool"})),
    "graph_network": (
        graph_network,
        frozenset({"scatter", "index", "index_reduce", "order_statistics"}),
    ),
    "recommender": (
        recommender,
        frozenset({"embedding_bag", "embedding", "histograms", "put", "scan"}),
    ),
}
"""The function that makes each, and the families whose substitutes its step reaches."""
