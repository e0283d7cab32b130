"""The version, on its own: whoever asks for it needs nothing else."""

__version__ = "0.1.0"
