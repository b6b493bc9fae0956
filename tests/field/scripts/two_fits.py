import keras
import numpy as np

x = np.random.default_rng(3).normal(size=(64, 6))
y = x[:, :1] * x[:, 1:2]

base = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu")], name="base")
model = keras.Sequential([base, keras.layers.Dense(1)])

base.trainable = False
model.compile(keras.optimizers.SGD(0.1), "mse")
model.fit(x, y, epochs=2, batch_size=32)

base.trainable = True
model.compile(keras.optimizers.SGD(0.01), "mse")
model.fit(x, y, epochs=3, batch_size=32)
