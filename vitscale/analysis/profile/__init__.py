"""Speed and memory: tables, figures, words."""
