"""Which configurations to profile, what all of them would cost, and which one to run.

==========  ==========================================================
`plan`      search space and strategy -> configurations to profile
`curve`     job model and search space -> tradeoff curve, front, knee
`choose`    tradeoff curve and objective -> the choice and its reason
`reuse`     which stored model serves which job, and when it no longer
==========  ==========================================================
"""
