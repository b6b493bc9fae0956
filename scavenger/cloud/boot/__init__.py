"""The user data and the script that a VM runs when it boots."""
