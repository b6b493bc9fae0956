"""Small models with layers, losses and training steps of the user's own."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

from benchmarks.keras_data import compiled, logits

_L, _O = keras.layers, keras.optimizers


class TokensAndPlaces(keras.layers.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = _L.Embedding(20, 4), _L.Embedding(7, 4)

    def call(self, x: Any) -> Any:
        return self.tokens(x) + self.places(keras.ops.arange(7))


def transformer() -> Any:
    inputs = keras.Input((7,), dtype="int32")
    x = TokensAndPlaces()(inputs)
    x = _L.LayerNormalization()(x + _L.MultiHeadAttention(2, 2)(x, x, use_causal_mask=True))
    x = _L.LayerNormalization()(x + _L.Dense(4)(_L.Dense(8, "gelu")(x)))
    rate = _O.schedules.CosineDecay(0.0, 9, warmup_target=0.01, warmup_steps=2)
    optimizer = _O.AdamW(rate, weight_decay=0.01, global_clipnorm=1.0)
    return compiled(keras.Model(inputs, _L.Dense(20)(x)), optimizer, logits(), metrics=["accuracy"])


class Sampling(keras.layers.Layer):  # type: ignore[misc]
    """Draws from a normal distribution, and adds its distance from the standard one to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(7)

    def call(self, inputs: Any) -> Any:
        mean, log_variance = inputs
        distance = -0.5 * (1 + log_variance - keras.ops.square(mean) - keras.ops.exp(log_variance))
        self.add_loss(keras.ops.mean(keras.ops.sum(distance, axis=1)))
        return mean + keras.ops.exp(0.5 * log_variance) * keras.random.normal(
            keras.ops.shape(mean), seed=self.seed_generator
        )


def variational() -> Any:
    inputs = keras.Input((6,))
    hidden = _L.Dense(8, "relu")(inputs)
    drawn = Sampling()([_L.Dense(2)(hidden), _L.Dense(2)(hidden)])
    return compiled(keras.Model(inputs, _L.Dense(6)(_L.Dense(8, "relu")(drawn))))


class Recommender(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.users = _L.Embedding(9, 4, embeddings_initializer="he_normal", embeddings_regularizer="l2")
        self.films = _L.Embedding(20, 4, embeddings_initializer="he_normal", embeddings_regularizer="l2")
        self.bias = _L.Embedding(9, 1)

    def call(self, inputs: Any) -> Any:
        user, film = self.users(inputs[:, 0]), self.films(inputs[:, 1])
        return keras.ops.sigmoid(keras.ops.sum(user * film, axis=1, keepdims=True) + self.bias(inputs[:, 0]))


def recommender() -> Any:
    return compiled(Recommender(), _O.Adam(0.01), "binary_crossentropy")


class Distiller(keras.Model):  # type: ignore[misc]
    """A small model that learns from a large one, with a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.student = keras.Sequential([_L.Dense(4, "relu"), _L.Dense(3)])
        self.teacher = keras.Sequential([_L.Dense(9, "relu"), _L.Dense(3)])
        self.teacher.trainable = False

    def call(self, x: Any) -> Any:
        return self.student(x)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        soft = keras.ops.softmax(self.teacher(x, training=False) / 3.0)
        own = super().compute_loss(x, y, y_pred, sample_weight, training)
        distance = keras.losses.kl_divergence(soft, keras.ops.softmax(y_pred / 3.0))
        return 0.1 * own + 0.9 * 9.0 * keras.ops.mean(distance)


def distillation() -> Any:
    return compiled(Distiller(), "adam", logits(), metrics=["accuracy"])


class OwnStep(keras.Model):  # type: ignore[misc]
    """As the guide on a `train_step` of one's own."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


def own_step() -> Any:
    inputs = keras.Input((6,))
    return compiled(OwnStep(inputs, _L.Dense(1)(_L.Dense(5, "tanh")(inputs))), metrics=["mae"])


class Adversaries(keras.Model):  # type: ignore[misc]
    """As the guide's generative adversarial network: two optimizers, two updates in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.judge = keras.Sequential([keras.Input((6,)), _L.Dense(1)])
        self.maker = keras.Sequential([keras.Input((2,)), _L.Dense(6)])
        self.seed_generator = keras.random.SeedGenerator(1)

    def compile(self, judge_optimizer: Any, maker_optimizer: Any) -> None:
        super().compile(optimizer=maker_optimizer)
        self.judge_optimizer = judge_optimizer

    def call(self, x: Any) -> Any:
        return self.judge(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        noise = keras.random.normal((keras.ops.shape(data[0])[0], 2), seed=self.seed_generator)
        with tf.GradientTape(persistent=True) as tape:
            made = self.judge(self.maker(noise))
            judged = keras.ops.mean(keras.ops.softplus(made) + keras.ops.softplus(-self.judge(data[0])))
            fooled = keras.ops.mean(keras.ops.softplus(-made))
        parts = (self.judge_optimizer, self.judge, judged), (self.optimizer, self.maker, fooled)
        for optimizer, part, loss in parts:
            optimizer.apply(tape.gradient(loss, part.trainable_weights), part.trainable_weights)
        return {"loss": judged}


def adversaries() -> Any:
    model = Adversaries()
    model.compile(_O.Adam(0.01), _O.Adam(0.01))
    return model


def pairs_of_a_batch() -> Any:
    """Metric learning: each sample's class is told by its likeness to the batch's other samples."""

    def alike(y: Any, predicted: Any) -> Any:
        likeness = keras.ops.matmul(predicted, keras.ops.transpose(predicted))
        same = keras.ops.cast(keras.ops.equal(y[:, None], y[None, :]), predicted.dtype)
        return keras.ops.mean(keras.ops.square(likeness - same), axis=-1)

    layers = [keras.Input((6,)), _L.Dense(4), _L.UnitNormalization()]
    return compiled(keras.Sequential(layers), "adam", alike)


def siamese() -> Any:
    left, right = keras.Input((6,)), keras.Input((6,))
    tower = keras.Sequential([_L.Dense(5, "tanh"), _L.Dense(3)])
    distance = _L.Lambda(
        lambda pair: keras.ops.sum(keras.ops.square(pair[0] - pair[1]), axis=1, keepdims=True)
    )
    output = _L.Dense(1, "sigmoid")(distance([tower(left), tower(right)]))

    def contrastive(y: Any, predicted: Any) -> Any:
        y = keras.ops.cast(y, predicted.dtype)
        far = keras.ops.square(keras.ops.maximum(1.0 - predicted, 0.0))
        return keras.ops.mean((1 - y) * keras.ops.square(predicted) + y * far, axis=-1)

    return compiled(keras.Model([left, right], output), "rmsprop", contrastive, metrics=["accuracy"])


def quantiles() -> Any:
    def pinball(y: Any, predicted: Any) -> Any:
        error, shares = y - predicted, keras.ops.array([0.1, 0.5, 0.9], predicted.dtype)
        return keras.ops.mean(keras.ops.maximum(shares * error, (shares - 1) * error), axis=-1)

    return compiled(keras.Sequential([keras.Input((6,)), _L.Dense(5, "relu"), _L.Dense(3)]), "lion", pinball)


def points() -> Any:
    """Clouds of points, with a learned turn that a regulariser keeps near to a rotation."""

    def orthogonal(kernel: Any) -> Any:
        square = keras.ops.reshape(kernel, (-1, 3, 3))
        apart = keras.ops.einsum("nij,nkj->nik", square, square) - keras.ops.eye(3)
        return 0.001 * keras.ops.sum(keras.ops.square(apart))

    inputs = keras.Input((7, 3))
    turn = _L.GlobalMaxPooling1D()(_L.Conv1D(4, 1, activation="relu")(inputs))
    turn = _L.Reshape((3, 3))(_L.Dense(9, kernel_initializer="zeros", kernel_regularizer=orthogonal)(turn))
    x = _L.GlobalMaxPooling1D()(_L.Conv1D(4, 1)(_L.Dot(axes=(2, 1))([inputs, turn])))
    return compiled(keras.Model(inputs, _L.Dense(3, "softmax")(x)), "adam", "sparse_categorical_crossentropy")


class WithClassToken(keras.layers.Layer):  # type: ignore[misc]
    """Puts a learned token before the patches, and adds learned positions."""

    def build(self, shape: Any) -> None:
        self.token = self.add_weight(shape=(1, 1, shape[-1]), initializer="random_normal")
        self.places = self.add_weight(shape=(1, shape[1] + 1, shape[-1]), initializer="random_normal")

    def call(self, patches: Any) -> Any:
        token = keras.ops.tile(self.token, (keras.ops.shape(patches)[0], 1, 1))
        return keras.ops.concatenate([token, patches], axis=1) + self.places


def vision_transformer() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = WithClassToken()(_L.Reshape((4, 6))(_L.Conv2D(6, 4, strides=4)(inputs)))
    normal = _L.LayerNormalization()(x)
    x = x + _L.MultiHeadAttention(2, 3)(normal, normal)
    x = x + _L.Dense(6)(_L.Dense(9, "gelu")(_L.LayerNormalization()(x)))
    optimizer = _O.AdamW(0.003, weight_decay=0.05, clipnorm=1.0)
    return compiled(keras.Model(inputs, _L.Dense(3)(x[:, 0])), optimizer, logits(), metrics=["accuracy"])


class OwnVariational(keras.Model):  # type: ignore[misc]
    """As the guide's variational autoencoder: a `train_step` with metrics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = _L.Dense(4), _L.Dense(6)
        self.distance = keras.metrics.Mean(name="distance")
        self.total = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total, self.distance]

    def call(self, x: Any) -> Any:
        return self.decoder(self.encoder(x)[:, :2])

    def train_step(self, data: Any) -> dict[str, Any]:
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            mean, log_variance = keras.ops.split(self.encoder(x), 2, axis=1)
            restored = self.decoder(mean)
            distance = -0.5 * keras.ops.mean(1 + log_variance - mean**2 - keras.ops.exp(log_variance))
            loss = keras.ops.mean(keras.ops.square(x - restored)) + distance
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True)
        )
        self.total.update_state(loss, sample_weight=keras.ops.shape(x)[0])
        self.distance.update_state(distance, sample_weight=keras.ops.shape(x)[0])
        return {metric.name: metric.result() for metric in self.metrics}


def own_variational() -> Any:
    return compiled(OwnVariational(), _O.Adam(0.01), None)


class Contrastive(keras.Model):  # type: ignore[misc]
    """As the example on SimCLR: two noisy views of each sample are told from those of all others in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((6,)), _L.Dense(4), _L.UnitNormalization()])

    def call(self, x: Any) -> Any:
        return self.encoder(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            likeness = keras.ops.matmul(self.encoder(x), keras.ops.transpose(self.encoder(0.9 * x)))
            own = keras.ops.arange(keras.ops.shape(x)[0])
            loss = keras.ops.mean(
                keras.losses.sparse_categorical_crossentropy(own, likeness, from_logits=True)
            )
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"loss": loss}


def contrastive() -> Any:
    return compiled(Contrastive(), "adam", None)


class OneCycle(keras.callbacks.Callback):  # type: ignore[misc]
    """A learning rate that rises and falls from batch to batch; stops when the loss is low."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = (0.01, 0.1, 0.05)[self.batches % 3]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        if self.batches == 3 or logs["loss"] < 0.01:
            self.model.stop_training = True


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """All samples as one batch, read from where they are."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.parts = parts

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.parts
