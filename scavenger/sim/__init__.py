"""A shared pool of aggregators in virtual time: the decisions are those of `scheduler`, only the clock is not real.

`trace` replays the arrivals of jobs over days and asks the scheduler at each; `nodes` runs the steps of jobs on the
nodes of one pool, request by request.
"""
