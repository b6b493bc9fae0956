"""A small transformer that writes Python's own manual, character by character; the text comes with CPython."""

from pydoc_data.topics import topics

import keras
import numpy as np

from scavenger.sdk import KerasJob

_LENGTH = 64
_WIDTH = 64
_HEADS = 4
_LAYERS = 2


@keras.saving.register_keras_serializable(package="charlm")
class PositionEmbedding(keras.layers.Layer):
    """Adds a learned vector per position."""

    def build(self, shape):
        self.table = self.add_weight(shape=(shape[1], shape[2]), initializer="random_normal", name="table")

    def call(self, x):
        return x + self.table


def _text() -> str:
    return "\n".join(topics[name] for name in sorted(topics))[:420_000]


def _sequences() -> tuple[np.ndarray, np.ndarray, int]:
    text = _text()
    alphabet = sorted(set(text))
    codes = np.searchsorted(alphabet, list(text)).astype("int32")
    count = (len(codes) - 1) // _LENGTH
    inputs = codes[: count * _LENGTH].reshape(count, _LENGTH)
    targets = codes[1 : count * _LENGTH + 1].reshape(count, _LENGTH)
    return inputs, targets, len(alphabet)


def _model(alphabet: int) -> keras.Model:
    inputs = keras.Input((_LENGTH,), dtype="int32")
    x = PositionEmbedding()(keras.layers.Embedding(alphabet, _WIDTH)(inputs))
    for _ in range(_LAYERS):
        normed = keras.layers.LayerNormalization()(x)
        attended = keras.layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)(
            normed, normed, use_causal_mask=True
        )
        x = keras.layers.Add()([x, attended])
        hidden = keras.layers.Dense(4 * _WIDTH, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Add()([x, keras.layers.Dense(_WIDTH)(hidden)])
    return keras.Model(inputs, keras.layers.Dense(alphabet)(keras.layers.LayerNormalization()(x)))


def job() -> KerasJob:
    inputs, targets, alphabet = _sequences()
    order = np.random.default_rng(0).permutation(len(inputs))
    held_out, train = order[: len(order) // 10], order[len(order) // 10 :]
    model = _model(alphabet)
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return KerasJob(
        model=model, train=(inputs[train], targets[train]), validation=(inputs[held_out], targets[held_out])
    )
