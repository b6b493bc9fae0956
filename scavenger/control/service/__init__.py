"""Jobs that run without the command: submission, runners, and the server that starts and watches them."""
