"""A script in JAX, in double precision; in a job, by the calls of `scavenger.jax`."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

import scavenger.jax as elastic

jax.config.update("jax_enable_x64", True)

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--loader", action="store_true")
parser.add_argument("--wrong", default="")
parser.add_argument("--save", default="")

SAMPLES, BATCH = 500, 24
KEPT = {"kept": jnp.full(2, 1.5, jnp.bfloat16)}
"""NumPy has no such type."""


def data():
    x = np.random.default_rng(5).normal(size=(SAMPLES, 6))
    return {"x": x, "y": (x.sum(1) > 0).astype(np.int64)}


def begin():
    draw = np.random.default_rng(3)
    params = {
        "in": jnp.array(draw.normal(size=(6, 8))),
        "out": jnp.array(draw.normal(size=(8, 2))),
        "bias": jnp.zeros(2),
    }
    return {"params": params, "optimizer": tx.init(params), "key": jax.random.key(1), "steps": 0, **KEPT}


tx = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1, momentum=0.9))


def loss_of(params, x, y):
    logits = jnp.tanh(x @ params["in"]) @ params["out"] + params["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


gradient = jax.jit(jax.value_and_grad(loss_of))


@jax.jit
def update(state, mean):
    change, optimizer = tx.update(mean, state["optimizer"], state["params"])
    key, _ = jax.random.split(state["key"])
    params = optax.apply_updates(state["params"], change)
    return {
        "params": params,
        "optimizer": optimizer,
        "key": key,
        "steps": state["steps"] + 1,
        "kept": state["kept"],
    }


def main():
    args = parser.parse_args()
    samples, size = data(), BATCH
    if args.loader:
        import torch

        rows = [
            {"x": torch.tensor(x), "y": torch.tensor(y)}
            for x, y in zip(samples["x"], samples["y"], strict=True)
        ]
        samples, size = torch.utils.data.DataLoader(rows, BATCH), None
    state, loader = elastic.prepare(begin(), samples, batch_size=size, seed=args.seed)
    for _ in range(args.epochs):
        for batch in loader:
            loss, gradients = gradient(state["params"], np.asarray(batch["x"]), np.asarray(batch["y"]))
            if args.wrong == "state":
                state = {**state, "key": jax.random.split(state["key"])[0]}
            if args.wrong != "step":
                state = elastic.step(update, state, gradients)
            if args.wrong == "twice":
                state = elastic.step(update, state, gradients)
            elastic.log(loss=loss)
        elastic.log(steps=state["steps"])
    if args.save:
        params = {name: np.asarray(array, np.float64) for name, array in state["params"].items()}
        np.savez(args.save, key=jax.random.key_data(state["key"]), **params)


if __name__ == "__main__":
    main()
