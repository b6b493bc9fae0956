"""The elastic protocol as pure state machines: who is in, what a step is, when it is applied.

`view` says what every member must know, `order` which samples an epoch visits when, `barrier` is the
aggregator's half of the protocol and `membership` the coordinator's. The processes in `scavenger.train` carry
their messages.
"""
