"""Measures, tests of significance and result files."""
