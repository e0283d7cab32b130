"""Base models of other kinds than the network, and their stacking with it."""

from graphslice.stacking.stacking import Stacking as Stacking
