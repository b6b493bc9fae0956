"""The command line: commands, their output and their questions. It decides nothing about training or money."""
