"""Intervals, tuned optima, shapes and recipes as plain values, each with its source."""
