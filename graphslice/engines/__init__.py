"""Engines that spread work over machines. Each maps a function over a table and knows nothing else."""
