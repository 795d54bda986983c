"""The command line: parses, calls one function of a lower room, prints. Imports nothing heavy at module level."""
