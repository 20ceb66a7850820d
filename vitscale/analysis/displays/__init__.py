"""Drawings that figures share: lines of cells along an axis, a forest of comparisons, a grid."""
