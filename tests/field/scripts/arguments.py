#!/usr/bin/env python3
"""Learns a noisy line."""

import argparse

import keras
import numpy as np


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("-b", "--batch-size", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--fast", action="store_true")
    return parser.parse_args()


def load_data(samples):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (samples, 1))
    return x, 3 * x + rng.normal(0, 0.1, (samples, 1))


def main():
    args = parse_args()
    x, y = load_data(48 if args.fast else 96)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(args.lr), "mse")
    model.fit(x, y, batch_size=args.batch_size, epochs=args.epochs)
    print(model.evaluate(x, y))


if __name__ == "__main__":
    main()
