"""Running a study: the command line, and Ray Tune as its scheduler."""
