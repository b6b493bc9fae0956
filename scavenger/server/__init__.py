"""The REST service: routes over the store and the functions of commands, with problems, users and metrics."""
