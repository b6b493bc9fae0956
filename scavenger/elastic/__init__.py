"""The elastic protocol as pure state machines: who is in, what a step is, when it is applied.

`view` says what every member must know, `order` which samples an epoch visits when, `placement` which aggregator
holds what. `barrier` is the sequencer's half of the protocol and `membership`, with `liveness`, the coordinator's.
`ledger`, `leases` and `quarantine` hand out opaque shards, and keep account of samples that kill. The processes in
`scavenger.train` carry their messages.
"""
