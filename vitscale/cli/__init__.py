"""Command lines of study scripts and of `vitscale`, and the progress view of a running study."""
