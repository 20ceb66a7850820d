"""The report of a study: its page, and how figures and tables look."""
