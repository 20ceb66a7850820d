"""Facts that the engine needs, each with its source: datasets, models, and printed numbers."""
