"""Tests and benchmarks of the GPU parts on a machine that has only nvcc, CMake and PyTorch."""
