#!/usr/bin/env python

# # Digits
# A first look, then a small network.

# In[1]:


import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from tensorflow import keras

# In[2]:


digits = load_digits()
plt.imshow(digits.images[0], cmap="gray")
plt.show()

# In[3]:


X_train, X_test, y_train, y_test = train_test_split(digits.data, digits.target, random_state=42)
scaler = StandardScaler().fit(X_train)
X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)
X_train.shape

# In[4]:


model = keras.models.Sequential(
    [
        keras.layers.Input(shape=(64,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dropout(0.25),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
history = model.fit(X_train, y_train, epochs=5, validation_data=(X_test, y_test))

# In[5]:


plt.plot(history.history["val_accuracy"])
np.argmax(model.predict(X_test), axis=1)
