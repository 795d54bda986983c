"""Command line: each command parses its arguments, calls one function of a lower package and prints the result."""
