"""The models of a job: gradient noise, epochs by batch size, step time by configuration.

=====================  ======================================================================
`noise`                γ and φ of every step, smoothed; when they have settled
`statistical`          B -> epochs to the target
`parallel`             (K, B) -> seconds per step
`job_model`            both and the data set: (offer, K, B) -> time and cost, with intervals
=====================  ======================================================================
"""
