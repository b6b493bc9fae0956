"""The pool of aggregators that the jobs of one user share on this machine: its manager, and the jobs' side."""
