import os

import keras
import numpy as np

x = np.random.rand(96, 5).astype("float32")
y = np.random.randint(0, 3, 96)
x_test, y_test = x[80:], y[80:]
os.makedirs("out", exist_ok=True)


class Remember(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["loss"])


def scheduler(epoch, lr):
    return lr if epoch < 2 else lr * 0.5


model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
callbacks = [
    keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
    keras.callbacks.LearningRateScheduler(scheduler),
    keras.callbacks.ModelCheckpoint("out/best.keras", save_best_only=True),
    Remember(),
]
model.fit(x[:80], y[:80], batch_size=8, epochs=10, validation_data=(x_test, y_test), callbacks=callbacks)
