"""Inputs from nowhere for everything that is read from outside; ``scripts/fuzz.py`` runs them."""
