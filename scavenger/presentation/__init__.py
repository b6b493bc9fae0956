"""Numbers, names and curves as people see them; shared by the command and the dashboard."""
