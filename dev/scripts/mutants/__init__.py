"""Mutation testing: would the tests notice a fault? `make mutants` tries a sample of faults."""
