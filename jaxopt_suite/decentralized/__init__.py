"""Agents on a graph: gossip, gradient tracking, bilevel problems, message passing."""
