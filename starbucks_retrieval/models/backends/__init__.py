"""Encoding back ends: torch, ONNX Runtime, OpenVINO."""
