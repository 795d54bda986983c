"""What an agent remembers: typed entries, and the modules that hold them."""
