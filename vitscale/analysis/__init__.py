"""What the outcomes of a study say: distributions, comparisons, figures and the report.

No torch, no ray.
"""
