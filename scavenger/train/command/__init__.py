"""Jobs whose training is a command of the user's own, one process of it on each worker."""
