"""Kernels of programs, by topic: functions of the number of samples and of their operands, compiled on first use.

Kernels do no bounds checks. :mod:`graphslice.program.trace` derives their operands from shapes that it has checked;
lengths and indices that are data are clamped by the kernels.
"""

from graphslice.program.kernels import attention as attention
from graphslice.program.kernels import columns as columns
from graphslice.program.kernels import embedding as embedding
from graphslice.program.kernels import layers as layers
