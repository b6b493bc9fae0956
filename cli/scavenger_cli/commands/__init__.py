"""What each command does; imported when it is called."""
