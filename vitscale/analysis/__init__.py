"""Analysis of the outcomes of a study: distributions, comparisons, figures and the report.

No torch, no ray.
"""
