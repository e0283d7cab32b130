"""Programs: models and operators as sequences of compiled kernels on a CPU.

:mod:`~graphslice.program.trace` records what a function does to symbolic tensors, :mod:`~graphslice.program.layout`
gives its values places in memory, :mod:`~graphslice.program.run` runs it on all cores, and
:mod:`~graphslice.program.function` makes it a function of torch tensors with gradients. Layout, run and the kernels do
not import torch.
"""
