"""The record of a study: the store of trials, the tables of outcomes, and the MLflow view."""
