"""Lazy ensemble sampling for linear bandits against standard ensembles.
"""
