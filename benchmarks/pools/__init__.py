"""Pools larger than those of one user, in virtual time: what the tables of shared aggregators are computed with.

`exact` finds the least cost of an assignment, which `scheduler` approximates. `clusters` decides for
many nodes by parting them, `timetable` and `serving` which request a node executes next. `trace` replays the arrivals
of jobs over days and asks the scheduler at each; `nodes` runs the steps of jobs on the nodes of a pool, request by
request.
"""
