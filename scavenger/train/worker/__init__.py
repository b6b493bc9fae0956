"""The worker: reads samples and computes gradients of the user's Keras model."""
