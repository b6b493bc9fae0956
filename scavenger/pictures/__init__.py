"""Pictures as files: drawn by matplotlib (the extra `plots`)."""
