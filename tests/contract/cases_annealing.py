"""How the battery is called on the factories of annealing."""

ANNEALING = {}
