"""A report on the installation and the machine: versions, devices, extras, and problems with remedies."""

from starbucks_retrieval.doctor.report import EnvironmentReport, Problem, examine

__all__ = ["EnvironmentReport", "Problem", "examine"]
