"""Bandits: linear statistics, contextual policies, bandit convex optimization."""
