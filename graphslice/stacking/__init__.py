"""Base models of other kinds than the network, and their stacking with it."""

from graphslice.stacking.kernel import KernelMachine as KernelMachine
from graphslice.stacking.kernel import fit_kernel as fit_kernel
from graphslice.stacking.stacking import Stacking as Stacking
from graphslice.stacking.trees import Trees as Trees
from graphslice.stacking.trees import fit_boosting as fit_boosting
from graphslice.stacking.trees import fit_forest as fit_forest
