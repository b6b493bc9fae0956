"""The processes of a job and what they say to each other.

`crew` (in the command's process) starts and ends them through an engine (`engine`, `ray_engine`) and passes on what
they say. `coordinator` leads; `worker` computes gradients; `aggregator` holds a part of the master copy and applies
the optimizer (`part`, `update`), and the first one of a job sequences its steps (`sequencer`). `messages` is what
travels by ZeroMQ, `memory` the shared block for payloads, `mirror` what is done between hosts instead, `checkpoint`
what outlives them all. Only workers import TensorFlow; aggregators do for optimizers that `update` does not know.
"""
