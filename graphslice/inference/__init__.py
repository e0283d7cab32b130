"""Molecules in, numbers out: one by one, or a file of them."""

from graphslice.inference.predictor import Predictions, Predictor, load

__all__ = ["Predictions", "Predictor", "load"]
