"""Diagnosis of a mount and its node: facts that are collected within time limits, and rules that judge them."""
