"""One file a command. Each is imported only when its command is called."""
