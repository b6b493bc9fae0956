"""A plain TensorFlow loop on scikit-learn's handwritten digits: 1,797 images of 8 x 8, nothing to download."""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from scavenger.sdk import loop

EPOCHS = 14
_SIDE = 32  # enlarged from 8, so that a step is long enough to be worth sharing
_HIDDEN = 512
_SHARDS = 24  # several per worker, so that few of them wait at the end of an epoch
_TRAIN = 1437


def data() -> tuple[np.ndarray, np.ndarray]:
    """Images scaled to [0, 1] and labels, shuffled; the first `_TRAIN` are for training."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    scaled = (images[order] / 16.0).astype("float32").reshape(-1, 8, 8)
    enlarged = scaled.repeat(_SIDE // 8, axis=1).repeat(_SIDE // 8, axis=2)
    return enlarged.reshape(-1, _SIDE**2), labels[order].astype("int64")


class Digits:
    """The training images as shards that are read from start to end."""

    def __init__(self) -> None:
        images, labels = data()
        self._images = np.array_split(images[:_TRAIN], _SHARDS)
        self._labels = np.array_split(labels[:_TRAIN], _SHARDS)
        self.sizes = [len(shard) for shard in self._images]

    def read(self, shard: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        return self._images[shard][start:stop], self._labels[shard][start:stop]


def logits(weights: dict, images: np.ndarray) -> tf.Tensor:
    """Two layers, so that this reads as what it is: TensorFlow without a model class."""
    hidden = tf.nn.relu(images @ weights["w1"] + weights["b1"])
    return hidden @ weights["w2"] + weights["b2"]


def train() -> None:
    """The training function of each worker."""
    glorot = keras.initializers.GlorotUniform()
    weights = {
        "w1": tf.Variable(glorot((_SIDE**2, _HIDDEN)), name="w1"),
        "b1": tf.Variable(tf.zeros(_HIDDEN), name="b1"),
        "w2": tf.Variable(glorot((_HIDDEN, 10)), name="w2"),
        "b2": tf.Variable(tf.zeros(10), name="b2"),
    }
    velocity = {name: tf.Variable(tf.zeros_like(weight)) for name, weight in weights.items()}
    everything = {**weights, **{f"velocity/{name}": slot for name, slot in velocity.items()}}

    @tf.function(input_signature=[tf.TensorSpec((None, _SIDE**2)), tf.TensorSpec((None,), tf.int64)])
    def gradients(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, dict]:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits(weights, images))
            loss = tf.reduce_mean(losses)
        return loss, tape.gradient(loss, weights)

    def apply(mean: dict[str, np.ndarray]) -> None:
        for name, weight in weights.items():
            velocity[name].assign(0.9 * velocity[name] - 0.01 * mean[name])
            weight.assign_add(velocity[name])

    def load(state: dict[str, np.ndarray]) -> None:
        for name, variable in everything.items():
            variable.assign(state[name])

    digits = Digits()
    gradients(*digits.read(0, 0, 2))  # traced before it joins: the others do not wait for that
    job = loop.init(
        digits,
        state=lambda: {name: variable.numpy() for name, variable in everything.items()},
        load=load,
    )
    for _ in job.epochs(EPOCHS):
        for batch in job.batches(local_batch_size=16):
            loss, gradient = gradients(*batch.data)
            mean = job.push_pull(gradient, samples=len(batch))
            apply(mean)
            job.notify_batch_end(loss=loss)


def accuracy(state: dict[str, np.ndarray]) -> float:
    """The accuracy on the images that were held out."""
    images, labels = data()
    predicted = np.argmax(logits(state, images[_TRAIN:]), axis=1)
    return float(np.mean(predicted == labels[_TRAIN:]))
