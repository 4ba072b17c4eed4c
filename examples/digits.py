"""Segment handwritten digits: every pixel is given the digit it belongs to, or background.

A small convolutional encoder-decoder on scikit-learn's digits. It looks grey levels up in a
learned table, pools to an odd size, upsamples bilinearly, and counts each image's votes with
scatter_add: an ordinary script, for which PyTorch has several nondeterministic CUDA kernels.
"""

import argparse
import hashlib

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

BACKGROUND = 10
CLASSES = 11
LEVELS = 17


class Segmenter(nn.Module):
    """Maps of grey levels (N, 8, 8) to log-probabilities (N, CLASSES, 8, 8)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.levels = nn.Parameter(torch.randn(LEVELS, 8) / 8)
        self.encoder = nn.Conv2d(8, width, 3, padding=1)
        self.bottleneck = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3), nn.ReLU(), nn.Conv2d(4 * width, 2 * width, 1), nn.ReLU()
        )
        self.decoder = nn.Conv2d(3 * width, CLASSES, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        lookup = self.levels[images].movedim(-1, 1)
        features = F.relu(self.encoder(lookup))
        whole = self.bottleneck(F.adaptive_avg_pool2d(features, 5))
        whole = F.interpolate(whole, size=images.shape[-2:], mode="bilinear", align_corners=False)
        return F.log_softmax(self.decoder(torch.cat([features, whole], dim=1)), dim=1)


def load() -> tuple[torch.Tensor, ...]:
    """Train images, test images, train digits, test digits."""
    data = load_digits()
    parts = train_test_split(data.images, data.target, test_size=0.25, random_state=0)
    return tuple(torch.as_tensor(part).long() for part in parts)


def accuracy(model: Segmenter, images: torch.Tensor, digits: torch.Tensor) -> float:
    """The share of images in which most of the confidence is on the right digit."""
    with torch.no_grad():
        confidence, classes = model(images).exp().max(dim=1)
    votes = torch.zeros(len(images), CLASSES, device=images.device)
    votes.scatter_add_(1, classes.flatten(1), confidence.flatten(1))
    right = votes[:, :BACKGROUND].argmax(dim=1) == digits
    return right.double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_images, test_images, train_digits, test_digits = (part.to(device) for part in load())
    model = Segmenter().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    loss_of_pixels = nn.NLLLoss(reduction="none")
    shuffle = torch.Generator().manual_seed(0)

    print(f"device {device}, {options.steps} steps of {options.batch} images")
    total = 0.0
    for step in range(1, options.steps + 1):
        chosen = torch.randint(len(train_images), (options.batch,), generator=shuffle).to(device)
        images, digits = train_images[chosen], train_digits[chosen]
        target = torch.where(images > 4, digits[:, None, None], BACKGROUND)
        loss = loss_of_pixels(model(images), target).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if step % 50 == 0:
            print(f"step {step:4d}  loss {total / 50:.4f}  " + "#" * round(20 * total / 50))
            total = 0.0

    print(f"test accuracy {accuracy(model, test_images, test_digits):.4f}")
    weights = hashlib.sha256()
    for tensor in model.state_dict().values():
        weights.update(tensor.cpu().numpy().tobytes())
    print(f"weights sha256 {weights.hexdigest()}")


if __name__ == "__main__":
    main()
