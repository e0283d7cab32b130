"""Random forest and gradient boosting on fixed features of molecules, and how they are blended with other answers."""

from graphslice.trees.beside import Blend as Blend
from graphslice.trees.blend import ErrorDifference as ErrorDifference
from graphslice.trees.blend import blend_weights as blend_weights
from graphslice.trees.blend import compare_errors as compare_errors
from graphslice.trees.blend import loss_of as loss_of
from graphslice.trees.fitting import fit_boosting as fit_boosting
from graphslice.trees.fitting import fit_forest as fit_forest
from graphslice.trees.model import Trees as Trees
