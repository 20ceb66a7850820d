"""Running a study: what is missing of it, with Ray Tune as its scheduler."""
