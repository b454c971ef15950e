"""Mutation testing, `python -m dev.scripts.mutants`: would the tests notice a fault?"""
