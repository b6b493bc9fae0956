"""The user interface: text, tables, progress, pictures and pages. It decides nothing and loads nothing."""
