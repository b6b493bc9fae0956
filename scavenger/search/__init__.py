"""The search: which configurations to profile, the tradeoff curve over all of them, and which one to run.

==========  ==========================================================
`plan`      search space and strategy -> configurations to profile
`curve`     job model and search space -> tradeoff curve, front, knee
`choose`    tradeoff curve and objective -> the choice and its reason
`reuse`     which stored model a job can reuse, and when it no longer fits
`trials`    trials of a search over hyperparameters -> which to begin, and which to stop
==========  ==========================================================
"""
