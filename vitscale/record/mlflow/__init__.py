"""The MLflow view of a study: one experiment, one run of the study, one per arm, one per trial."""
