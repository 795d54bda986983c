"""What files and messages may hold. No I/O; imports nothing of autoqec but errors."""
