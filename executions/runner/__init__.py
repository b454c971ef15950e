"""Runs at their engines: starting one, following it, ending it, and being alone at that."""
