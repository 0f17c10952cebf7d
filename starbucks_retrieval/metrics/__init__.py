"""Retrieval measures, tests of significance, result files, and the names of runs."""
