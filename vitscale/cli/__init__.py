"""The command line: of study scripts, and of `vitscale`; what a user sees while a study runs."""
