"""The engines, which start, watch and end processes: on this machine, on Ray clusters, on rented VMs."""
