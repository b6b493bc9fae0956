"""Leaders on VMs of their own: renting one, letting the command in by SSH, its job, its end."""
