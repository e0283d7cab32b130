"""Inference: predictions, uncertainty and embeddings of molecules, in memory or file to file."""

from graphslice.inference.predictor import Predictions, Predictor, load

__all__ = ["Predictions", "Predictor", "load"]
