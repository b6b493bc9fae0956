"""The processes of a job and what they say to each other.

`supervisor` (in the command's process) starts and ends them through one of the `engines` and routes their messages. The
`coordinator` leads a job; a `worker` computes gradients; `aggregation` holds the master copy of the model, applies the
optimizer and sequences the steps. `transport` has sockets, messages, heartbeats, the shared block for
payloads on one host and their replication between hosts; `checkpoints` outlive all processes; `custom_loop` runs
training loops that users write. Only workers import TensorFlow; aggregators do for optimizers that
`aggregation.update` does not know.
"""
