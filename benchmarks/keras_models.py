"""Small models of Keras's own layers, of the kinds that its guides and examples show."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras

from benchmarks.keras_data import CLASSES, IMAGES, SAMPLES, TABLE, compiled, logits

_L, _O = keras.layers, keras.optimizers


def house_prices() -> Any:
    normalise = _L.Normalization()
    normalise.adapt(TABLE)
    layers = [keras.Input((6,)), normalise, _L.Dense(8, "relu"), _L.Dense(1)]
    return compiled(keras.Sequential(layers), _O.RMSprop(0.001), metrics=["mae"])


def convnet() -> Any:
    layers = [
        keras.Input((8, 8, 3)),
        _L.Rescaling(1 / 255),
        _L.Conv2D(4, 3, activation="relu"),
        _L.MaxPooling2D(),
        _L.Flatten(),
        _L.Dropout(0.5),
        _L.Dense(3, "softmax"),
    ]
    return compiled(keras.Sequential(layers), "adam", "sparse_categorical_crossentropy", metrics=["accuracy"])


def bidirectional() -> Any:
    layers = [
        keras.Input((None,), dtype="int32"),
        _L.Embedding(20, 4),
        _L.Bidirectional(_L.LSTM(3, return_sequences=True)),
        _L.Bidirectional(_L.LSTM(3)),
        _L.Dense(1, "sigmoid"),
    ]
    return compiled(keras.Sequential(layers), "adam", "binary_crossentropy", metrics=["accuracy"])


def forecast() -> Any:
    layers = [
        keras.Input((7, 3)),
        _L.Conv1D(4, 3, padding="causal", activation="relu"),
        _L.GRU(4, return_sequences=True),
        _L.TimeDistributed(_L.Dense(2)),
    ]
    return compiled(keras.Sequential(layers), "adam", keras.losses.Huber(), metrics=["mae"])


def autoencoder() -> Any:
    layers = [
        keras.Input((8, 8, 3)),
        _L.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
        _L.Conv2DTranspose(4, 3, strides=2, padding="same", activation="relu"),
        _L.Conv2D(3, 3, padding="same", activation="sigmoid"),
    ]
    return compiled(keras.Sequential(layers), "adam", "binary_crossentropy")


def tickets() -> Any:
    title, body, tags = (
        keras.Input((None,), name="title"),
        keras.Input((None,), name="body"),
        keras.Input((4,), name="tags"),
    )
    words = [_L.LSTM(3)(_L.Embedding(20, 4)(part)) for part in (title, body)]
    x = _L.concatenate([*words, tags])
    outputs = {"priority": _L.Dense(1, name="priority")(x), "department": _L.Dense(3, name="department")(x)}
    return compiled(
        keras.Model({"title": title, "body": body, "tags": tags}, outputs),
        "adam",
        {"priority": keras.losses.BinaryCrossentropy(from_logits=True), "department": logits()},
        loss_weights={"priority": 1.0, "department": 0.2},
        metrics={"department": ["accuracy"]},
    )


def base() -> Any:
    layers = [keras.Input((8, 8, 3)), _L.Conv2D(4, 3), _L.BatchNormalization(), _L.ReLU()]
    return keras.Sequential([*layers, _L.GlobalAveragePooling2D()], name="base")


def transfer() -> Any:
    frozen = base()
    frozen.trainable = False
    inputs = keras.Input((8, 8, 3))
    return compiled(keras.Model(inputs, _L.Dense(3)(frozen(inputs, training=False))), "adam", logits())


def fine_tuning() -> Any:
    """The second stage: the base is trained, too, with a small rate, its statistics stay."""
    model = transfer()
    model.fit(IMAGES, CLASSES, batch_size=SAMPLES, verbose=0)
    model.get_layer("base").trainable = True
    for layer in model.get_layer("base").layers:
        if isinstance(layer, _L.BatchNormalization):
            layer.trainable = False
    return compiled(model, _O.Adam(1e-4), logits())


def structured() -> Any:
    """Categories by number and by range, embedded inside the model (wide and deep)."""
    kind, age = keras.Input((1,), dtype="int64", name="kind"), keras.Input((1,), name="age")
    lookup = _L.IntegerLookup(vocabulary=[0, 1, 2, 3], output_mode="one_hot")
    ranges = _L.Discretization([-1.0, 0.0, 1.0], output_mode="one_hot")
    wide = _L.concatenate([lookup(kind), ranges(age)])
    output = _L.add([_L.Dense(1)(wide), _L.Dense(1)(_L.Dense(4, "relu")(wide))])
    metrics = [keras.metrics.Precision(0.0), keras.metrics.Recall(0.0), keras.metrics.AUC(from_logits=True)]
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return compiled(keras.Model({"kind": kind, "age": age}, output), "ftrl", loss, metrics=metrics)


def imbalanced() -> Any:
    layers = [keras.Input((6,)), _L.Dense(8, "relu"), _L.Dense(1, "sigmoid")]
    metrics = [keras.metrics.FalseNegatives(), keras.metrics.TruePositives(), keras.metrics.F1Score()]
    return compiled(keras.Sequential(layers), _O.Adam(0.01), "binary_crossentropy", metrics=metrics)


def translation() -> Any:
    source, target = keras.Input((None, 3)), keras.Input((None, 3))
    _, *states = _L.LSTM(4, return_state=True)(source)
    decoded = _L.LSTM(4, return_sequences=True)(target, initial_state=states)
    return compiled(keras.Model([source, target], _L.Dense(5)(decoded)), "rmsprop", logits())


def padded_classifier() -> Any:
    layers = [keras.Input((7,), dtype="int32"), _L.Embedding(21, 4, mask_zero=True), _L.LSTM(3), _L.Dense(3)]
    return compiled(keras.Sequential(layers), "adam", logits())


def tagger() -> Any:
    layers = [
        keras.Input((7,), dtype="int32"),
        _L.Embedding(21, 4, mask_zero=True),
        _L.LSTM(3, return_sequences=True),
        _L.Dense(3),
    ]
    return compiled(keras.Sequential(layers), "adam", logits())


def segmentation() -> Any:
    inputs = keras.Input((8, 8, 3))
    down = _L.ReLU()(_L.BatchNormalization()(_L.SeparableConv2D(4, 3, padding="same")(inputs)))
    low = _L.Conv2D(4, 3, padding="same", activation="relu")(_L.MaxPooling2D()(down))
    up = _L.concatenate([_L.UpSampling2D()(low), down])
    metrics = [keras.metrics.MeanIoU(3, sparse_y_pred=False)]
    return compiled(keras.Model(inputs, _L.Conv2D(3, 1)(up)), "adam", logits(), metrics=metrics)


def augmented() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = _L.RandomRotation(0.1)(_L.RandomFlip("horizontal")(inputs))
    x = _L.Conv2D(4, 3, padding="same")(x)
    x = _L.GlobalAveragePooling2D()(_L.add([x, _L.DepthwiseConv2D(3, padding="same", activation="gelu")(x)]))
    return compiled(keras.Model(inputs, _L.Dense(3)(x)), _O.SGD(0.1, momentum=0.9, nesterov=True), logits())


def averaged() -> Any:
    layers = [keras.Input((6,)), _L.Dense(5, "tanh", kernel_regularizer="l1l2"), _L.Dense(3)]
    rate = _O.schedules.PiecewiseConstantDecay([2], [0.1, 0.01])
    optimizer = _O.SGD(rate, momentum=0.9, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)
    return compiled(keras.Sequential(layers), optimizer, logits())


def weighted() -> Any:
    layers = [keras.Input((6,)), _L.Dense(5, "selu", kernel_constraint="max_norm"), _L.Dense(1)]
    return compiled(keras.Sequential(layers), "adamax", "huber", weighted_metrics=["mae"])


def labels() -> Any:
    """Several labels for one sample."""
    layers = [keras.Input((6,)), _L.Dense(5, "relu"), _L.Dense(4, "sigmoid")]
    loss = keras.losses.BinaryCrossentropy(label_smoothing=0.1)
    return compiled(keras.Sequential(layers), _O.Nadam(0.01), loss, metrics=["binary_accuracy"])


def mixed() -> Any:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        hidden = [keras.Input((8, 8, 3)), _L.Conv2D(4, 3, activation="relu"), _L.Flatten()]
        return compiled(keras.Sequential([*hidden, _L.Dense(3, dtype="float32")]), _O.Adam(0.01), logits())
    finally:
        keras.config.set_dtype_policy(before)


def lora() -> Any:
    model = keras.Sequential([keras.Input((6,)), _L.Dense(5, "tanh"), _L.Dense(3)])
    model.layers[0].enable_lora(2)
    model.layers[1].trainable = False
    return compiled(model, _O.AdamW(0.01), logits())


def volumes() -> Any:
    layers = [keras.Input((4, 4, 4, 1)), _L.Conv3D(2, 2, activation="relu"), _L.GlobalAveragePooling3D()]
    rate = _O.schedules.ExponentialDecay(0.01, 2, 0.9, staircase=True)
    return compiled(
        keras.Sequential([*layers, _L.Dense(1, "sigmoid")]),
        _O.Adam(rate),
        "binary_crossentropy",
        metrics=["auc"],
    )


def demand() -> Any:
    layers = [keras.Input((7, 3)), _L.LSTM(4), _L.Dense(1)]
    return compiled(keras.Sequential(layers), _O.Adam(0.05), metrics=["mae"])


def reviews() -> Any:
    """Text as it is: the model has the words."""
    words = _L.TextVectorization(vocabulary=["good", "bad", "film", "story"], output_sequence_length=4)
    inputs = keras.Input((1,), dtype="string")
    x = _L.GlobalAveragePooling1D()(_L.Embedding(6, 3)(words(inputs)))
    return compiled(keras.Model(inputs, _L.Dense(1, "sigmoid")(x)), "sgd", "binary_crossentropy")


def customers() -> Any:
    """Categories by name and numbers of any size, in one dict."""
    colour, size = keras.Input((1,), dtype="string", name="colour"), keras.Input((6,), name="size")
    lookup = _L.StringLookup(vocabulary=["red", "green"], output_mode="one_hot")
    normalise = _L.Normalization()
    normalise.adapt(TABLE)
    x = _L.Dense(5, "relu")(_L.concatenate([lookup(colour), normalise(size)]))
    return compiled(
        keras.Model({"colour": colour, "size": size}, _L.Dense(3)(x)), "nadam", logits(), metrics=["accuracy"]
    )


def anomalies() -> Any:
    """An autoencoder that gets x alone; the loss is a penalty on what it does not restore."""
    inputs = keras.Input((7, 3))
    x = _L.Conv1D(4, 3, strides=2, padding="same", activation="relu")(inputs)
    x = _L.Conv1DTranspose(3, 3, strides=2, padding="same")(x)[:, :7]
    return compiled(keras.Model(inputs, RestoringLoss()([inputs, x])), _O.Adam(0.01), None)


class RestoringLoss(keras.layers.Layer):  # type: ignore[misc]
    def call(self, pair: Any) -> Any:
        self.add_loss(keras.ops.mean(keras.ops.square(pair[0] - pair[1])))
        return pair[1]


def detection() -> Any:
    """A class and a box for each image, as a dict of losses; gradients of two steps are added up."""
    inputs = keras.Input((8, 8, 3))
    x = _L.GlobalAveragePooling2D()(_L.Conv2D(4, 3, activation="relu")(inputs))
    outputs = {"class": _L.Dense(3, name="class")(x), "box": _L.Dense(4, name="box")(x)}
    losses = {"class": logits(), "box": "huber"}
    optimizer = _O.AdamW(0.01, gradient_accumulation_steps=2)
    return compiled(keras.Model(inputs, outputs), optimizer, losses, loss_weights={"class": 1.0, "box": 2.0})
