"""What was done: the store of trials, the tidy table and the MLflow view."""
