"""TensorFlow's MultiWorkerMirroredStrategy in a custom loop: steps, and their gradient alone, in turns.

A child process of the benchmarks; its last line on standard output is a JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from benchmarks.peers import shapes
from benchmarks.peers.running import peer_arguments

_WARM_UP_STEPS = 3


def main() -> None:
    parser = peer_arguments(argparse.ArgumentParser())
    parser.add_argument("--network", required=True)
    parser.add_argument("--batch", type=int, required=True, help="of each rank")
    parser.add_argument("--steps", type=int, required=True, help="of a window")
    parser.add_argument("--windows", type=int, required=True)
    options = parser.parse_args()
    addresses = options.addresses.split(",")
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": options.rank}}
    )
    import keras
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    from benchmarks.peers import keras_jobs

    with strategy.scope():
        model = getattr(keras_jobs, f"{options.network}_model")()
        optimizer = keras.optimizers.Adam(shapes.LEARNING_RATE)
        optimizer.build(model.trainable_variables)
    alone = getattr(keras_jobs, f"{options.network}_model")()
    random = np.random.default_rng(0)
    x = tf.constant(random.standard_normal((options.batch, *model.input_shape[1:]), dtype=np.float32))
    y = tf.constant(random.integers(shapes.CLASSES, size=options.batch))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def gradient_of(network: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, network(x, training=True))
        return tape.gradient(loss, [variable.value for variable in network.trainable_variables])

    step = tf.function(
        lambda: strategy.run(lambda: optimizer.apply(gradient_of(model), model.trainable_variables))
    )
    gradient = tf.function(lambda: gradient_of(alone))
    found: dict[str, list[float]] = {"step_times_s": [], "gradient_times_s": []}
    for window in range(options.windows):
        for name, task in (("step_times_s", step), ("gradient_times_s", gradient)):
            warm_up = 1 if window else _WARM_UP_STEPS
            for number in range(warm_up + options.steps):
                begin = time.perf_counter()
                task()
                if number >= warm_up:
                    found[name].append(time.perf_counter() - begin)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
