# Two inputs, joined by the functional API; rare classes weigh more.
import numpy as np
from tensorflow import keras

rng = np.random.default_rng(0)
numbers = rng.normal(size=(200, 6))
words = rng.integers(0, 50, size=(200, 8))
labels = (numbers.sum(axis=1) > 1).astype(int)

number_input = keras.Input(shape=(6,), name="numbers")
word_input = keras.Input(shape=(8,), name="words", dtype="int32")
embedded = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(50, 4)(word_input))
hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()([number_input, embedded]))
output = keras.layers.Dense(1, activation="sigmoid")(hidden)
model = keras.Model([number_input, word_input], output)
model.compile(keras.optimizers.Adam(1e-3), loss="binary_crossentropy", metrics=["accuracy"])
model.summary()

model.fit(
    {"numbers": numbers, "words": words},
    labels,
    class_weight={0: 1.0, 1: 3.0},
    epochs=4,
)
