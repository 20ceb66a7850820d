"""Searches for lr and wd: tables, figures, words."""
