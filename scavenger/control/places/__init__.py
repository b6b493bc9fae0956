"""Where jobs run: on this machine, on VMs or pods, in a pool; what each offers, lacks and allocates."""
