"""The two networks of the comparisons, as numbers alone, so that every framework builds the same."""

from __future__ import annotations

from itertools import pairwise

CLASSES = 10
MLP_INPUTS = 2048
MLP_WIDTHS = (2560, 2560, 2560, 2560)
"""With the inputs and classes: 25 million parameters, whose gradient takes 100 MB, in tensors that two aggregators
can share about evenly."""
QUARTER_INPUTS = 1024
QUARTER_WIDTHS = (1280, 1280, 1280, 1280)
"""A quarter of its parameters."""
CNN_SIDE = 32
CNN_WIDTHS = (32, 64, 128)
"""Channels of each pair of 3 x 3 convolutions, after which the image size is halved."""
WORDS, LENGTH = 10_000, 256
TRANSFORMERS = {"transformer": (768, 12), "small": (32, 1)}
"""Width and number of layers, each of four times as many hidden units: 100 million parameters, and a few for tests."""
LEARNING_RATE = 0.001


def parameters(network: str) -> int:
    """How many a network has: `mlp`, `quarter`, `cnn`, or one of `TRANSFORMERS`."""
    if network in TRANSFORMERS:
        width, layers = TRANSFORMERS[network]
        # attention has four matrices and the feed-forward part has two, of four times the size, each with its biases;
        # two normalizations
        layer = 4 * width * (width + 1) + 8 * width * width + 5 * width + 4 * width
        return layers * layer + (2 * WORDS) * width + WORDS
    if network != "cnn":
        inner = (MLP_INPUTS, *MLP_WIDTHS) if network == "mlp" else (QUARTER_INPUTS, *QUARTER_WIDTHS)
        sizes = (*inner, CLASSES)
        return sum((rows + 1) * columns for rows, columns in pairwise(sizes))
    total, channels, side = 0, 3, CNN_SIDE
    for width in CNN_WIDTHS:
        total += (9 * channels + 1) * width + (9 * width + 1) * width
        channels, side = width, side // 2
    return total + (side * side * channels + 1) * CLASSES
