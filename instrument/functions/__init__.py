"""Roles whose subject is a function of a few tensors: softmax, rotary positions, norms.

One module for each role; what they share stands in `inputs`, `subject`, `role` and `values`.
"""
