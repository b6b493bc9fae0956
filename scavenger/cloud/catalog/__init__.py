"""Machine types of the clouds with their prices."""
