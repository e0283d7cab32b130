"""Evaluation: metrics of predictions, coverage of intervals, and OGB-LSC submission files."""
