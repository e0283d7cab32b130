"""Mixers side by side: the same data, the same budget and the same seeds for each."""
