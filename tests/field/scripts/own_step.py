import keras
import numpy as np
import tensorflow as tf


class Batches(keras.utils.PyDataset):
    def __init__(self, x, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.x, self.batch_size = x, batch_size

    def __len__(self):
        return int(np.ceil(len(self.x) / self.batch_size))

    def __getitem__(self, index):
        batch = self.x[index * self.batch_size : (index + 1) * self.batch_size]
        return batch, batch


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.layers.Dense(2, activation="tanh")
        self.decoder = keras.layers.Dense(6)
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        return self.decoder(self.encoder(x))

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


x_train = np.random.rand(70, 6).astype("float32")
model = Autoencoder()
model.compile(optimizer=keras.optimizers.Adam())
model.fit(Batches(x_train, 16), epochs=3)
