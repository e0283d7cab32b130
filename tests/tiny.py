"""A model that trains in seconds."""

TINY = {"layers": 1, "dim": 16, "heads": 2, "ffn_dim": 16, "mixer": "slice-max"}
