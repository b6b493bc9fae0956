"""Handwritten digits in JAX: `python plain.py`."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.05)
args = parser.parse_args()

tx = optax.sgd(args.lr, momentum=0.9)


def logits_of(params, x):
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def loss_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits_of(params, x), y).mean()


@jax.jit
def step(state, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(state["params"], x, y)
    changes, optimizer = tx.update(gradients, state["optimizer"])
    return {"params": optax.apply_updates(state["params"], changes), "optimizer": optimizer}, loss


@jax.jit
def accuracy_of(params, x, y):
    return (logits_of(params, x).argmax(1) == y).mean()


def main():
    x, y = load_digits(return_X_y=True)
    x, held_out = np.split(x.astype(np.float32) / 16, [1437])
    y, held_out_y = np.split(y, [1437])
    draw = np.random.default_rng(0)
    params = {
        "w1": jnp.array(draw.normal(0, 64**-0.5, (64, 256)), jnp.float32),
        "b1": jnp.zeros(256),
        "w2": jnp.array(draw.normal(0, 256**-0.5, (256, 10)), jnp.float32),
        "b2": jnp.zeros(10),
    }
    state = {"params": params, "optimizer": tx.init(params)}

    for epoch in range(args.epochs):
        order = draw.permutation(len(x))
        for start in range(0, len(x), args.batch_size):
            rows = order[start : start + args.batch_size]
            state, loss = step(state, x[rows], y[rows])
        accuracy = accuracy_of(state["params"], held_out, held_out_y)
        print(f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
