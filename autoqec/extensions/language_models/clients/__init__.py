"""Language models behind one protocol: anthropic, command lines, scripted; with cassettes and a ledger."""
