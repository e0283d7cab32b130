"""Pretraining on targets computed from molecules, such as RDKit descriptors, for later fine-tuning."""
