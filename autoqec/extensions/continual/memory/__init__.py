"""Memories of agents: typed entries and the modules that store them."""
