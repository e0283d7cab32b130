"""The figures of ``reproduce_figures.py``, one file each, with ``add_arguments`` and ``draw``."""
