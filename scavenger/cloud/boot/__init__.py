"""What a VM runs when it boots."""
