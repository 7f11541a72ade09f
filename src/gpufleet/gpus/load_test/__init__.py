"""Test the GPUs of this machine under load: memory, matrix multiplication, PCIe and NVLink.

Needs only NVIDIA's driver: the kernels are PTX text that the driver compiles.
"""
