"""What ``scripts/benchmark.py`` measures, a module each: ``add_arguments(parser)`` and ``run(options)``."""
