"""Single settings with several seeds: tables, figures, words."""
