"""What a person sees: text, tables, progress, pictures and pages. It decides nothing and loads nothing."""
