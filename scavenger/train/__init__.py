"""The processes of a training job and the messages between them.

`supervisor` (in the command's process) starts and ends the processes through one of the `engines` and routes their
messages. The `coordinator` leads a job; a `worker` computes gradients; `aggregation` holds the master copy of the
model, applies the optimizer and sequences the steps. `transport` has sockets, messages, heartbeats, the shared-memory
block for payloads on one host and their replication between hosts; `checkpoints` writes and reads checkpoints;
`custom_loop` runs training loops that users write. Only workers import TensorFlow, and aggregators whose optimizer
`aggregation.update` does not implement.
"""
