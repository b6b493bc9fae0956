import tensorflow as tf

BATCH_SIZE = 20
AUTOTUNE = tf.data.AUTOTUNE

images = tf.random.stateless_uniform((120, 12, 12, 1), seed=(1, 2))
labels = tf.cast(tf.reduce_mean(images, axis=[1, 2, 3]) > 0.5, tf.int32)


def augment(image, label):
    return tf.image.flip_left_right(image), label


train_ds = tf.data.Dataset.from_tensor_slices((images[:100], labels[:100]))
train_ds = train_ds.map(augment, num_parallel_calls=AUTOTUNE).cache().shuffle(100)
train_ds = train_ds.batch(BATCH_SIZE).prefetch(AUTOTUNE)
val_ds = tf.data.Dataset.from_tensor_slices((images[100:], labels[100:])).batch(BATCH_SIZE)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Rescaling(2.0, offset=-1.0),
        tf.keras.layers.Conv2D(4, 3, activation="relu"),
        tf.keras.layers.GlobalMaxPooling2D(),
        tf.keras.layers.Dense(2),
    ]
)
model.compile(
    optimizer="rmsprop",
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(train_ds, validation_data=val_ds, epochs=2)
