"""Funnels: shortlists at small sizes, rescored at larger ones."""
