"""Runs the kernels on the user's own GPU. The only part of kvplan that imports kvplan_kernels, torch and triton."""
