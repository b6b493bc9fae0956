"""The command line: what a person types, sees and is asked. It decides nothing about training or money."""
