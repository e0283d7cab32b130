"""A model that trains in seconds."""

TINY = {"layers": 1, "dim": 16, "heads": 2, "ffn_dim": 16, "mixer": "slice-max"}

#: Mixers that run as compiled programs on CPUs; others may, if their operations can be traced.
COMPILED = {"softmax", "slice-ascend", "slice-interleave", "slice-max", "slice-released", "slice-quantile", "csp"}
COMPILED |= {"galerkin", "fourier", "map-only"}
