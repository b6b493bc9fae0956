"""The elastic protocol as pure state machines: membership, the content of a step, and when it is applied.

`view` defines what every member must know, `order` the order of an epoch's samples, `placement` which aggregator
holds which tensor. `barrier` is the sequencer's half of the protocol, `membership` and `liveness` the coordinator's.
`ledger`, `leases` and `quarantine` hand out opaque shards, and track samples that kill workers. The processes in
`scavenger.train` carry their messages.
"""
