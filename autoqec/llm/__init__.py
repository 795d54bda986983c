"""Language models behind one protocol: anthropic, command lines, scripted; cassettes and a ledger at its seam."""
