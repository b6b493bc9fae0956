"""What commands, programs and browsers ask for, of the store itself or of a server's REST API."""
