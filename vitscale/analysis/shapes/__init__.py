"""Depth, width and branches at the lr that suits each shape: tables, figures, words."""
