"""The processes of a job and what they say to each other.

`coordinator` (in the service's process) leads; `worker` computes gradients; `aggregator` holds the master
weights and applies the optimizer. `engine` starts and ends processes, `messages` is what travels by ZeroMQ,
`memory` the shared block for payloads. Only the modules that run inside worker and aggregator import
TensorFlow.
"""
