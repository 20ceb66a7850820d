"""Questions about arms: what each compares, its tables, its figures and its sentences."""
