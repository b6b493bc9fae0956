"""A plain Keras script on scikit-learn's handwritten digits, as `python train.py` runs it."""

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

EPOCHS = 60

digits = load_digits()
x_train, x_test, y_train, y_test = train_test_split(digits.data / 16, digits.target, random_state=0)

model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=64, epochs=EPOCHS, validation_data=(x_test, y_test))
model.save("digits.keras")
