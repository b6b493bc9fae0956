"""VMs of a job: the fleet, the reconciler, clean-up, prices and the bill."""
