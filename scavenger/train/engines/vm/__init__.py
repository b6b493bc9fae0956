"""The engine for rented VMs, and the agent that runs on each of them."""
