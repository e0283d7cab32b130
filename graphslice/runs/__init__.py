"""A model on disk: run directories and model files."""
