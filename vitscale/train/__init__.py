"""The one common trainer: a generator of rows. Needs torch and timm; no ray and no mlflow."""
