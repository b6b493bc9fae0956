"""Fine-tunes a network of keras.applications; weights=None, as there is nothing to download here."""

import keras
import numpy as np

SIZE = 32
x = np.random.default_rng(0).uniform(0, 255, (24, SIZE, SIZE, 3)).astype("float32")
y = np.arange(24) % 3

base_model = keras.applications.MobileNetV2(
    input_shape=(SIZE, SIZE, 3), alpha=0.35, include_top=False, weights=None
)
base_model.trainable = False

inputs = keras.Input(shape=(SIZE, SIZE, 3))
out = keras.applications.mobilenet_v2.preprocess_input(inputs)
out = base_model(out, training=False)
out = keras.layers.GlobalAveragePooling2D()(out)
out = keras.layers.Dropout(0.2)(out)
model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(out))
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

model.fit(x, y, batch_size=8, epochs=1)
base_model.save_weights("base.weights.h5")
