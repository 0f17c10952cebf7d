"""A report of this installation and this machine: versions, devices, extras, problems with remedies."""

from starbucks_retrieval.doctor.report import EnvironmentReport, Problem, examine

__all__ = ["EnvironmentReport", "Problem", "examine"]
