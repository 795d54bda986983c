"""Contracts: frozen models of files and messages. No I/O; imports only `autoqec.errors`."""
