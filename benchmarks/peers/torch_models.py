"""The comparisons' networks in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.peers import shapes


def build(network: str) -> Any:
    """A network as `benchmarks.peers.shapes` has it: `mlp`, `cnn`, or one of `TRANSFORMERS`."""
    layers: list[Any] = []
    if network in shapes.TRANSFORMERS:
        width, count = shapes.TRANSFORMERS[network]
        heads = max(1, width // 64)
        layers += (
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True) for _ in range(count)
        )
        layers = [
            nn.Embedding(shapes.WORDS, width),
            *layers,
            nn.Linear(width, shapes.WORDS),
            nn.Flatten(0, 1),
        ]
        return nn.Sequential(*layers)
    if network == "mlp":
        before = shapes.MLP_INPUTS
        for width in shapes.MLP_WIDTHS:
            layers += [nn.Linear(before, width), nn.ReLU()]
            before = width
        return nn.Sequential(*layers, nn.Linear(before, shapes.CLASSES))
    channels, side = 3, shapes.CNN_SIDE
    for width in shapes.CNN_WIDTHS:
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels, side = width, side // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(side * side * channels, shapes.CLASSES))


def samples(network: str, count: int) -> tuple[Any, Any]:
    """A made-up batch."""
    if network in shapes.TRANSFORMERS:
        made = torch.Generator().manual_seed(0)
        return tuple(torch.randint(shapes.WORDS, (2, count, shapes.LENGTH), generator=made))
    shape = (shapes.MLP_INPUTS,) if network == "mlp" else (3, shapes.CNN_SIDE, shapes.CNN_SIDE)
    torch.manual_seed(0)
    return torch.randn(count, *shape), torch.randint(shapes.CLASSES, (count,))


def precision(network: str, device: str) -> Any:
    """What a network is computed in: a transformer in bfloat16, its weights staying as they are."""
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=network in shapes.TRANSFORMERS)
