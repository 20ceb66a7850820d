"""Arrays in, numbers out: intervals, correlation, correction for many tests."""
