"""Many jobs on one pool of nodes: which job has how many slots, and where.

`allotting.allot` decides in two steps, both pure. A policy of `policies.POLICIES` gives each job a number of slots;
`placing.place` gives the slots nodes. `values` has what is seen and what comes out, as columns: one row a job.
"""
