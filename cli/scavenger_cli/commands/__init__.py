"""The code of each command; imported only when the command runs."""
